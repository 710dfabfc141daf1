"""The noise with the least error under limits on what records may lose: `prdp study design`.

Result: a table of weights (kind `designed`) whose certified loss keeps every limit, with less variance, mean absolute
error or width of intervals than the best named noise found under the same limits, beside a lower bound of what any
noise within them has. The limits are kept by the table that is returned, not by the optimiser's word: weights are
rounded to DIGITS decimals first, and what is stated is the tight loss of these (docs/design.md).

Only public numbers enter: limits, the measure's step, what is minimised.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import log, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.planning.study.design_bound import FALLS, LARGEST, Certificate
from pipeline.planning.study.design_program import Cost, Knots, Limit, Program
from udfs.losses.curve import stated_at
from udfs.losses.tight import tight_loss
from udfs.mechanisms.additive_kinds import Designed, ExponentialPolylog, WeightTable
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.noise.heavy_weights import PolylogWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, exact, up_float

MINIMISED = ("variance", "mean_absolute_error", "interval")
COSTS = {"variance": Cost(power=2), "mean_absolute_error": Cost(power=1)}
MOST_SOLVES = 8  # of programs on the way to the narrowest interval
DIGITS = 6  # decimals of a log-weight
MOST_LIMITS = 12
PARTS = 10  # knots up to the smallest limit
EVEN = 6  # multiples of the smallest limit up to which knots are evenly spaced
GROWTH = 1.12  # of knots beyond
MIRRORED = 1.25  # growth of their distances from each limit's influence, on both sides
BEYOND = 2  # multiples of the largest limit up to which weights are free
WIDTHS = 5  # Δ/√ρ, up to which they are free too: Gaussian noise has the standard error Δ/√(2ρ)
TAIL_END = 2**45
LEAST_TEMPER = 0.5
SCALES = (-4, 6)  # decimal exponents of noise scales, in an influence, among which a start is sought
SCALE_ERROR = 1e-3
MOST_SCALES = 20  # that are looked at beside it
MOST_ROUNDS = 3  # of limits at the influences where the stated loss is computed
FLATTER = 0.97  # the start of the search, times the log-weights of the named noise: so far inside the limits
HALVINGS = 16
STARTS = tuple(  # shapes of the noise that a design starts from: p, a, d
    (p, a, d)
    for p, a, ds in (
        ("1.5", "1.64872128", ("0.75", "1.5", "3")),
        ("2", "2.71828183", ("0.2", "0.3", "0.5", "1", "1.5", "2.5")),
        ("3", "7.3890561", ("0.05", "0.1", "0.2")),
    )
    for d in ds
)


Limits = tuple[tuple[int, float], ...]  # in lattice steps


@dataclass(frozen=True)
class Wish:
    """Limits (influence, rho), both above 0 and rising together; what is `minimised`; the measure's step.

    `coverage` is that of the interval whose width is stated, and minimised where it is `interval`.
    """

    limits: tuple[tuple[Fraction, Fraction], ...]
    minimise: str = "variance"
    step: Fraction = Fraction(1)
    coverage: Fraction = Fraction(95, 100)

    def __post_init__(self) -> None:
        if self.minimise not in MINIMISED:
            raise PlanError(f"minimise: must be one of {', '.join(MINIMISED)}")
        if not self.step > 0:
            raise PlanError("step: must be above 0")
        if not 0 < self.coverage < 1:
            raise PlanError("coverage: must be above 0 and below 1")
        if not 1 <= len(self.limits) <= MOST_LIMITS:
            raise PlanError(f"limits: from 1 to {MOST_LIMITS} are needed")
        for influence, rho in self.limits:
            if not (influence > 0 and rho > 0):
                raise PlanError("limits: an influence and its rho must be above 0")
            if (influence / self.step).denominator != 1:
                raise PlanError(f"limits: {as_json(influence)} is not a whole number of steps of {as_json(self.step)}")
        for (small, less), (large, more) in pairwise(self.limits):
            if not (small < large and less < more):
                raise PlanError("limits: influences must rise, and rho with them: a smaller record loses no more")
        if not self.steps[-1][0] * BEYOND < TAIL_END:
            raise PlanError("limits: the largest influence has too many steps; design for a coarser step")

    @property
    def steps(self) -> Limits:
        """The limits in lattice steps."""
        return tuple((int(influence / self.step), float(rho)) for influence, rho in self.limits)

    def error(self, mechanism: Mechanism) -> float:
        """Return what is minimised of a mechanism, in units or squared units."""
        return self.errors(mechanism)[self.minimise]

    def errors(self, mechanism: Mechanism) -> dict[str, float]:
        """Return variance (squared units), mean absolute error, and width of the interval (units)."""
        return {
            "variance": mechanism.variance(0.0),
            "mean_absolute_error": mechanism.mean_absolute_error(0.0),
            "interval": 2 * float(_half_width(self, mechanism) * self.step),
        }


@dataclass(frozen=True)
class Design:
    """A designed mechanism beside the named one that it started from, both within the wish's limits.

    `lower_bound`: what is minimised is no less for any symmetric noise within the limits whose probabilities do not
    rise with the distance; None where limits have too many steps for a bound.
    """

    wish: Wish
    mechanism: Designed
    start: ExponentialPolylog
    lower_bound: float | None

    def to_json(self) -> dict[str, Any]:
        """Return for what the table was designed and what came of it, beside the table itself."""
        return {
            "minimise": self.wish.minimise,
            "step": as_json(self.wish.step),
            "limits": [
                {"influence": as_json(x), "rho": as_json(rho), "certified": up_float(self.mechanism.loss_at(x))}
                for x, rho in self.wish.limits
            ],
            "coverage": as_json(self.wish.coverage),
            **self.wish.errors(self.mechanism),
            "start": self.start.describe() | self.wish.errors(self.start),
            "ratio": self.wish.error(self.mechanism) / self.wish.error(self.start),
            "lower_bound": self.lower_bound,
        }


def design(wish: Wish) -> Design:
    """Return the noise with the least error found under the wish's limits, which its certified loss keeps.

    Raises PlanError where no named noise keeps the limits to start from.
    """
    start = best_start(wish)
    limits, tables = wish.steps, []
    for _ in range(MOST_ROUNDS):
        knots = _knots(limits, start)
        programs = partial(Program, knots, limits)
        logs = _weights(start).fast(knots.free.astype(np.float64))
        while not programs(Cost(power=2)).slack(logs).min() > 0:
            logs = FLATTER * logs
        if wish.minimise == "interval":
            logs = _narrowest(wish, programs, logs, _half_width(wish, start))
        else:
            logs = programs(COSTS[wish.minimise]).solve(logs)
        tables.append(_table(knots, logs).weights)
        stated = tuple((stated_at(tables[-1], steps), rho) for steps, rho in wish.steps)
        if stated == limits:
            break
        limits = stated
    mechanism = _within_limits(wish, knots, logs)
    return Design(wish, mechanism, start, _lower_bound(wish, mechanism, {tables[0], tables[-1]}))


def _half_width(wish: Wish, mechanism: Mechanism) -> int:
    return round(mechanism.interval_around(0.0, wish.coverage)[1] / float(wish.step))


def _narrowest(wish: Wish, programs: Callable[[Cost], Program], start: Floats, half_width: int) -> Floats:
    """Return log-weights of a narrow interval.

    The least P(|Z| > c) is a program of its own. The noise that solves it for one step less than what is reached has
    a half-width of at most that, or there is no such noise: so c falls, in some long steps, until it stays.
    """
    best = start
    for _ in range(MOST_SOLVES):
        if half_width == 0:
            break
        program = programs(Cost(beyond=half_width - 1))
        logs = program.solve(start)
        reached = _half_width(wish, Designed(weights=_table(program.knots, logs), step=wish.step))
        if reached >= half_width:
            break
        best, half_width = logs, reached
    return best


def _lower_bound(wish: Wish, mechanism: Designed, near: Set[PiecewiseWeights]) -> float | None:
    """Return the lower bound of what is minimised, in units or squared units, from weights near the best ones."""
    if wish.steps[-1][0] > LARGEST:
        return None
    step = float(wish.step)
    low, high = 0, _half_width(wish, mechanism)
    cost = COSTS.get(wish.minimise, Cost(beyond=high - 1))
    certificates = (Certificate(weights, wish.steps, fall) for weights in near for fall in FALLS)
    least, best = max(((each.least(cost), each) for each in certificates), key=lambda pair: pair[0])
    if wish.minimise != "interval":
        return least * step**cost.power
    # the first half-width for which it is not certain that more than 1 − coverage lies beyond
    while low < high:
        middle = (low + high) // 2
        impossible = best.least(Cost(beyond=middle)) > 1 - wish.coverage
        low, high = (middle + 1, high) if impossible else (low, middle)
    return 2 * low * step


def best_start(wish: Wish) -> ExponentialPolylog:
    """Return the exponential polylogarithmic noise with the least error among STARTS within the limits."""
    candidates = list(_within(wish))
    if not candidates:
        raise PlanError("limits: no exponential polylogarithmic noise keeps them; state limits that rise more")
    return min(candidates, key=wish.error)


def _within(wish: Wish) -> Iterator[ExponentialPolylog]:
    positions = np.concatenate(_positions(wish.steps))
    limits = [Limit(Knots(positions, positions[:0], np.zeros(0)), *limit) for limit in wish.steps]
    for p, a, d in STARTS:
        shape = {"p": Fraction(p), "a": Fraction(a), "d": Fraction(d)}
        try:
            exponent = _exponent(shape, limits, positions)
            for some in range(1, MOST_SCALES):
                sigma = _decimal(exponent + some * SCALE_ERROR) * wish.step
                start = ExponentialPolylog(sigma=sigma, step=wish.step, **shape)  # type: ignore[arg-type]
                if all(tight_loss(_weights(start), steps) <= rho for steps, rho in wish.steps):
                    yield start
                    break
        except (ParameterError, ArithmeticError):
            continue  # no noise of this shape has so narrow, or so wide, a scale


def _exponent(shape: Mapping[str, Fraction], limits: Sequence[Limit], positions: NDArray[np.int64]) -> float:
    """Return log10 of about the least scale, in steps, at which noise of a shape keeps all limits.

    That is of its log-weights at the `positions`, straight between them.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 — SciPy, for a design alone

    def excess(exponent: float) -> float:
        v = PolylogWeights(**shape, scale=_decimal(exponent)).fast(positions.astype(np.float64))
        return max(log(limit.ratio(v)) for limit in limits)

    around = log10(positions[0] * PARTS)
    low, high = (around + x for x in SCALES)
    if not excess(low) > 0 >= excess(high):
        raise ArithmeticError("no scale is at the limits")
    return float(brentq(excess, low, high, xtol=SCALE_ERROR / 4))


def _decimal(exponent: float) -> Fraction:
    return exact(f"{10**exponent:.3e}")


def _weights(mechanism: ExponentialPolylog) -> PolylogWeights:
    return mechanism.log_weights


def _positions(limits: Limits) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the knots where log-weights are free, and those of the tail."""
    first = limits[0][0]
    wide = max(WIDTHS * steps / rho**0.5 for steps, rho in limits)
    last = max(BEYOND * limits[-1][0], int(min(wide, TAIL_END / 2)))
    gap = max(1, first // PARTS)
    free = [gap]
    while free[-1] < last:
        ahead = free[-1] + gap if free[-1] < EVEN * first else max(free[-1] + gap, int(free[-1] * GROWTH))
        free.append(min(last, ahead))
    # losses of a limit compare weights near its influence with those near 0
    apart = [int(x) for x in MIRRORED ** np.arange(log(last, MIRRORED))]
    # noise may be far narrower than the smallest limit
    narrow = {int(x) for x in GROWTH ** np.arange(log(gap, GROWTH))}
    beside = {shift + side * gap * x for shift, _ in limits for x in (0, *apart) for side in (-1, 1)}
    tail = [2 * last]
    while tail[-1] < TAIL_END:
        tail.append(2 * tail[-1])
    return np.array(sorted({*free, *narrow, *(k for k in beside if 0 < k <= last)})), np.array(tail)


def _knots(limits: Limits, start: ExponentialPolylog) -> Knots:
    free, tail = _positions(limits)
    weights = _weights(start)
    return Knots(free, tail, weights.fast(tail.astype(np.float64)) - weights.fast(free[-1:].astype(np.float64)))


def _within_limits(wish: Wish, knots: Knots, logs: Floats) -> Designed:
    """Return the mechanism of the log-weights, flattened (times some t ≤ 1) until its certified loss keeps the limits.

    Flatter weights lose less as a rule, so the largest t is sought by halves; every answer is one that was certified.
    """
    low, high = LEAST_TEMPER, 1.0
    best = None
    t = high
    for _ in range(HALVINGS):
        mechanism = Designed(weights=_table(knots, t * logs), step=wish.step)
        if all(mechanism.loss_at(influence) <= rho for influence, rho in wish.limits):
            best, low = mechanism, t
        else:
            high = t
        t = (low + high) / 2
    if best is None:
        raise PlanError("limits: the search did not end within them; state other limits")
    return best


def _table(knots: Knots, logs: Floats) -> WeightTable:
    """Return the table of log-weights, rounded to DIGITS decimals and kept from rising."""
    values = np.minimum.accumulate(np.minimum(np.append(logs, logs[-1] + knots.fall), 0.0))
    decimals = [Fraction(round(value * 10**DIGITS), 10**DIGITS) for value in values.tolist()]
    steps = (0, *knots.free.tolist(), *knots.tail.tolist())
    return WeightTable(PiecewiseWeights(steps=steps, logs=(Fraction(0), *decimals)))
