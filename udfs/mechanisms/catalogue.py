"""The closed set of mechanisms: kind → class. A plan can name nothing else."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from udfs.mechanisms import additive_kinds, groupwise, transformed_kinds
from udfs.mechanisms.base import Mechanism, ParameterError

CATALOGUE: Mapping[str, type[Mechanism]] = MappingProxyType(
    {
        mechanism.kind: mechanism
        for mechanism in (
            additive_kinds.Gaussian,
            additive_kinds.Laplace,
            additive_kinds.GeneralizedGaussian,
            additive_kinds.ExponentialPolylog,
            additive_kinds.SymmetricStable,
            additive_kinds.Designed,
            transformed_kinds.Root,
            transformed_kinds.Log,
            additive_kinds.UnitSplitting,
            groupwise.GroupwiseLog,
            groupwise.GroupwiseNoisy,
        )
    }
)


def build(spec: Mapping[str, Any], step: Fraction) -> Mechanism:
    """Return the mechanism that `spec` (kind and parameters, as `describe` gives them) names, on `step`.

    Raises ParameterError on an unknown kind or parameter, a missing one, or a value that breaks its rule.
    """
    if not isinstance(spec.get("kind"), str) or spec["kind"] not in CATALOGUE:
        raise ParameterError("kind", "one of " + ", ".join(CATALOGUE))
    mechanism = CATALOGUE[spec["kind"]]
    values = {name: value for name, value in spec.items() if name != "kind"}
    declared = mechanism.parameters()
    for name in values:
        if name not in declared:
            raise ParameterError(name, f"absent: {mechanism.kind} has no such parameter")
    for name, parameter in declared.items():
        if parameter.default is None and name not in values:
            number = "a number " if parameter.kind == "number" and not parameter.integral else ""
            raise ParameterError(name, f"given: {number}{parameter.rule}")
    return mechanism(step=step, **values)
