"""What of a broken plan has the right shape, so that it can be checked on and all mistakes come out together."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from pipeline.plan.schema import (
    MOST_PARTS,
    DatasetSpec,
    DomainSpec,
    LimitSpec,
    MechanismSpec,
    PartsSpec,
    PlanSpec,
    QuerySpec,
    Spec,
    is_by_parts,
)

_PARTS: Mapping[str, type[Spec]] = {"dataset": DatasetSpec, "domain": DomainSpec}
_MECHANISM: TypeAdapter[Spec] = TypeAdapter(MechanismSpec)
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


def _sound_partition(data: Mapping[str, Any]) -> Spec:
    """Return a mechanism by parts; of a part that is not sound the code alone is kept, with None."""
    partition = _sound(PartsSpec, data)
    if isinstance(data.get("parts"), dict) and 0 < len(data["parts"]) <= MOST_PARTS:
        partition.__dict__["parts"] = {code: _sound_mechanism(part) for code, part in data["parts"].items()}
    return partition


def _sound_mechanism(data: object) -> Spec | None:
    try:
        return _MECHANISM.validate_python(data)
    except ValidationError:
        return None


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
    if kind is QuerySpec and is_by_parts(data.get("mechanism")):
        part.__dict__["mechanism"] = _sound_partition(data["mechanism"])
    return part
