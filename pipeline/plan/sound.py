"""What of a broken plan has the right shape, so that it can be checked on and all mistakes come out together."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from pipeline.plan.schema import DatasetSpec, DomainSpec, LimitSpec, PlanSpec, QuerySpec, Spec

_PARTS: Mapping[str, type[Spec]] = {"dataset": DatasetSpec, "domain": DomainSpec}
_LISTS: Mapping[str, type[Spec]] = {"queries": QuerySpec, "budget": LimitSpec}


def sound_parts(data: Mapping[str, Any]) -> PlanSpec:
    """Return the plan of `data` without the keys whose values have a wrong shape; these are no attributes of it."""
    whole = {key: value for key, value in data.items() if key not in _PARTS and key not in _LISTS}
    plan = cast(PlanSpec, _sound(PlanSpec, whole))
    for key, kind in _PARTS.items():
        if key in data:
            plan.__dict__[key] = _sound(kind, data[key])
    for key, kind in _LISTS.items():
        if isinstance(data.get(key), list):
            plan.__dict__[key] = [_sound(kind, part) for part in data[key]]
    return plan


def _sound(kind: type[Spec], data: object) -> Spec:
    part = kind.model_construct()
    if not isinstance(data, dict):
        part.__dict__.clear()  # of what is no mapping nothing is known
        return part
    for key in kind.model_fields.keys() & data.keys():
        try:
            setattr(part, key, data[key])
        except ValidationError:
            part.__dict__.pop(key, None)  # a default must not stand in for a broken value
    return part
