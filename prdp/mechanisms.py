"""The mechanisms as a scientist types them: parameters in, losses and errors out, floats and arrays alike.

There is one class for each kind of the catalogue, named as in `prdp.mechanisms.__all__`; its parameters are those of
a plan. Nothing is drawn here: totals are released by `prdp.load_plan(...).release()`, which the ledger accounts for.

    >>> import prdp.mechanisms
    >>> log = prdp.mechanisms.Log(a=100, sigma=0.35)
    >>> log
    prdp.mechanisms.Log(a=100, sigma=0.35, noise='gaussian', estimator='mean')

The loss is rho of per-record zCDP (PRzCDP): what a record of this influence may lose at most.

    >>> round(log.loss_at(10.5), 6)
    0.04069
    >>> log.loss_at([1, 2, 10]).round(6)
    array([0.000404, 0.001601, 0.037078])

Errors depend on the true total, but for additive noise.

    >>> round(log.standard_error(1000), 2)
    397.1
    >>> laplace = prdp.mechanisms.Laplace(sigma=4)
    >>> laplace.pure_loss_at(2), round(laplace.mean_absolute_error(), 3), laplace.interval_around(50)
    (0.5, 3.959, (38.0, 62.0))
    >>> laplace.continuous.variance()
    32.0
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from udfs.mechanisms import base
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, exact, up_float

TINY = float(np.finfo(np.float64).tiny)


class Mechanism:
    """A mechanism for totals over disjoint cells, with the loss that it promises each record.

    Args:
        step: what totals and influences of additive mechanisms are whole numbers of, in the measure's unit.
        **parameters: the kind's own, by name, as numbers (a float means its shortest decimal) or words.

    Raises:
        ValueError: a parameter is unknown, absent or breaks its rule.

    Every method takes a number or an array of any shape, and returns a float or an array of that shape. Influences
    and totals are in the measure's unit.
    """

    kind: ClassVar[str]

    def __init__(self, *, step: float | Fraction = 1, **parameters: Any) -> None:
        self._mechanism = build({"kind": self.kind, **parameters}, exact(step))

    @property
    def mechanism(self) -> base.Mechanism:
        """The exact object underneath: losses as rational numbers, noise, formulas."""
        return self._mechanism

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters' values by name, defaults included."""
        return {name: value for name, value in self.describe().items() if name != "kind"}

    def describe(self) -> dict[str, Any]:
        """Return kind and parameters as a plan writes them."""
        return self._mechanism.describe()

    @property
    def formula(self) -> str:
        """The loss as a formula in the parameters, the influence Δ and the step λ of the noise's lattice."""
        return self._mechanism.formula

    @property
    def continuous(self) -> Any:
        """The law that released values approach where noise scales are large beside the step, in closed forms.

        Of additive mechanisms that of the noise, with `density`, `cdf`, `quantile`, `variance()` and more; of `Log` and
        `Root` that of the mean-unbiased value, with the total as an argument. None where there are no closed forms.
        """
        return self._mechanism.continuous

    def loss_at(self, influence: ArrayLike) -> Any:
        """Return rho, the PRzCDP loss of a record of an `influence` ≥ 0: an upper bound, rounded up."""
        return _bounds(self._mechanism.loss_at, self._mechanism.loss, influence)

    def pure_loss_at(self, influence: ArrayLike) -> Any:
        """Return epsilon, the pure per-record loss likewise; infinite where the mechanism has none."""
        return _bounds(self._mechanism.pure_loss_at, self._mechanism.pure_loss, influence)

    def epsilon(self, influence: float, delta: float) -> float:
        """Return an ε such that a record of this influence has (ε, δ)-differential privacy, rounded up.

        Args:
            influence: of the record, at least 0.
            delta: above 0 and below 1.
        """
        from pipeline.accounting.convert import ORDERS, SIZE, approximate_epsilon, approximate_epsilon_of  # noqa: PLC0415
        from udfs.losses.distribution import bounds_of  # noqa: PLC0415

        shift = _exact(influence)
        loss = self._mechanism.pure_loss_at(shift)
        pure = None if loss is None else up_float(loss)
        by_curve = approximate_epsilon_of(ORDERS, self._mechanism.renyi_at(shift, ORDERS), delta, pure)
        by_rho = approximate_epsilon(up_float(self._mechanism.loss_at(shift)), delta, pure)
        pair = self._mechanism.pair_at(shift)
        return min(by_curve, by_rho, math.inf if pair is None else bounds_of([pair], delta, SIZE).epsilon)

    def variance(self, total: ArrayLike = 0.0) -> Any:
        """Return the variance of the released value at true totals ≥ 0, in squared units; infinite where it is."""
        return _each(self._mechanism.variance, total)

    def standard_error(self, total: ArrayLike = 0.0) -> Any:
        """Return the root of the variance."""
        return _each(lambda q: math.sqrt(self._mechanism.variance(q)), total)

    def mean_absolute_error(self, total: ArrayLike = 0.0) -> Any:
        """Return the mean of |released value − total|; infinite where it is."""
        return _each(self._mechanism.mean_absolute_error, total)

    def interval_around(self, total: ArrayLike, interval: float = 0.95) -> tuple[Any, Any]:
        """Return the ends of the interval that is released for true totals when the noise happens to be 0.

        Args:
            total: the true totals.
            interval: the coverage that intervals have at least, above 0 and below 1.
        """
        share = exact(interval)
        if not 0 < share < 1:
            raise ValueError("interval: must be above 0 and below 1")
        ends = [_each(lambda q, i=i: self._mechanism.interval_around(q, share)[i], total) for i in (0, 1)]  # type: ignore[misc]
        return ends[0], ends[1]

    def __repr__(self) -> str:
        of = self._mechanism.step
        step = {} if of == 1 else {"step": as_json(of) if exact(float(of)) == of else of}
        arguments = ", ".join(f"{name}={value!r}" for name, value in (self.parameters | step).items())
        return f"prdp.mechanisms.{type(self).__name__}({arguments})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mechanism) and self._mechanism == other._mechanism

    def __hash__(self) -> int:
        return hash(self._mechanism)


def _bounds(
    single: Callable[[Fraction], Fraction | None], all_at_once: Callable[[Floats], Floats], influence: ArrayLike
) -> Any:
    try:
        influences = np.asarray(influence, dtype=np.float64)
    except OverflowError:
        raise ValueError("influence: must lie within the doubles") from None
    if not np.all((influences >= 0) & np.isfinite(influences)):
        raise ValueError("influence: must be a number of at least 0")
    if influences.ndim:  # where a loss underflows, it is still one
        return np.maximum(all_at_once(influences), np.where(influences > 0, TINY, 0.0))
    loss = single(_exact(influence))
    return float("inf") if loss is None else up_float(loss)


def _exact(influence: Any) -> Fraction:
    number = exact(influence.item() if isinstance(influence, np.generic | np.ndarray) else influence)
    if not number >= 0:
        raise ValueError("influence: must be a number of at least 0")
    return number


def _each(figure: Callable[[float], float], totals: ArrayLike) -> Any:
    points = np.asarray(totals, dtype=np.float64)
    if not np.all(np.isfinite(points)):
        raise ValueError("total: must be a finite number")
    figures = np.array([figure(total) for total in points.ravel().tolist()], dtype=np.float64).reshape(points.shape)
    return figures if points.ndim else float(figures)


def _public(of: type[base.Mechanism]) -> type[Mechanism]:
    parameters: Mapping[str, Any] = of.parameters()
    rules = [
        f"    {p.name}: {p.doc} ({p.rule}{f', by default {p.default}' * (p.default is not None)})"
        for p in parameters.values()
    ]
    title = (of.__doc__ or "").split("\n")[0]
    doc = "\n".join([title, "", "Args:", *rules, "    step: the measure's step (1 by default)"])
    named = [
        Parameter(p.name, Parameter.KEYWORD_ONLY, default=Parameter.empty if p.default is None else p.default)
        for p in parameters.values()
    ]
    signature = Signature([*named, Parameter("step", Parameter.KEYWORD_ONLY, default=1)])
    members = {"kind": of.kind, "__doc__": doc, "__module__": __name__, "__signature__": signature}
    return type(of.__name__, (Mechanism,), members)


_KINDS = {mechanism.__name__: _public(mechanism) for mechanism in CATALOGUE.values()}
globals().update(_KINDS)
__all__ = ["Mechanism", *_KINDS]  # noqa: PLE0604 — names of the catalogue

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Mechanism]: ...
