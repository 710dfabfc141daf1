"""Targets of calibration, in place of a noise scale: an accuracy at a total, or a loss, ε or (ε, δ) at an influence.

Every quantity grows or falls with the noise. `reached` decides, and `gap`, the logarithm of how far off a mechanism is,
leads a search: below 0 where there is too little noise.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from fractions import Fraction
from math import ceil, erfc, inf, log, pi, sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.convert import closed_scale, exact_scale
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, file_errors
from pipeline.storage.paths import input_lines
from udfs.losses.distribution import delta_above, delta_of
from udfs.mechanisms.additive_kinds import GaussianNoise
from udfs.mechanisms.base import SMALLEST, Mechanism
from udfs.noise.weights import beyond
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact, up_float, up_text

LARGEST_EPSILON = 1000
DIGITS = 7  # of a computed δ, rounded up: its last bits depend on the processor
TARGETS = ("standard_error", "mean_absolute_error", "relative_error", "interval", "loss", "epsilon")  # as asked for
AT_A_RECORD = ("loss", "epsilon")  # the others are at a total
BESIDE = (("delta", "epsilon"), ("bound", "delta"), ("group_loss", "relative_error"), ("group", "group_loss"))
BOUNDS = ("exact", "closed")  # which condition decides of Gaussian noise
LEAST_SHARE = 1e-300  # of cells, whose logarithm is finite
SHARES = ("coverage", "quantile", "share", "delta")  # numbers that are below 1
NO_BOUND = "above 0: an error relative to nothing has no bound"


class CalibrationError(ValueError):
    """The target cannot be met; the message states the best that can be."""


class WrongNumber(CalibrationError):
    """A number of a target breaks its rule; carries both, so that a message can name the option."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: must be {rule}")
        self.field = field
        self.rule = rule


class Aim(Enum):
    """Which noise meets a target."""

    AT_LEAST = auto()  # the least noise with the value wanted, or more
    BELOW = auto()  # the most noise with less than the value wanted
    WITHIN = auto()  # the most noise with the value wanted, or less
    BOUND = auto()  # the least noise with the value wanted, or less, decided exactly: a loss


@dataclass(frozen=True)
class Quantity:
    """What can be wanted: in words, its numbers (the wanted one first), its value, and which noise meets it."""

    what: str
    names: tuple[str, ...]
    value: Callable[["Target", Mechanism], Any]
    aim: Aim
    gap: Callable[["Target", Mechanism], float] | None = None  # None: the logarithm of value over wanted


@dataclass(frozen=True)
class Target:
    """A quantity, by its name in QUANTITIES, and its numbers: exact, in the measure's unit, above 0 but for a total.

    `sizes`, of a share of cells: pairs of a total above 0 and how many cells have it, or more.
    """

    quantity: str
    numbers: FrozenMap[Fraction]
    sizes: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls, name: str, *, bound: str | None = None, sizes: tuple[tuple[float, float], ...] = (), **numbers: Any
    ) -> "Target":
        """Return the target of a quantity, or of the one that a name in TARGETS means beside these numbers.

        Numbers of other quantities, and None, are left out. Raises WrongNumber where one breaks its rule.
        """
        some = {key: number for key, number in numbers.items() if number is not None}
        if name == "epsilon" and "delta" in some:
            name = "closed" if bound == "closed" else "delta"
        elif name == "relative_error":
            name = next((each for each in ("group_loss", "quantile") if each in some), name)
        names = QUANTITIES[name].names
        if "total" in names:
            some.setdefault("total", 1 if "relative_error" in names else 0)
        return cls(name, FrozenMap.of({each: exact(some[each]) for each in names}), sizes)

    def __post_init__(self) -> None:
        for name, number in self.numbers.items():
            if not (number > 0 or (name == "total" and number == 0)):
                raise WrongNumber(name, f"{'at least' if name == 'total' else 'above'} 0")
            if number and not SMALLEST <= number <= 1 / SMALLEST:
                raise WrongNumber(name, "between 1e-50 and 1e50")
            if name in SHARES and not number < 1:
                raise WrongNumber(name, "below 1")
            if name == "epsilon" and "delta" in self.numbers and not number <= LARGEST_EPSILON:
                raise WrongNumber(name, f"at most {LARGEST_EPSILON}")
        if self.is_relative and not self.total > 0:
            raise WrongNumber("total", NO_BOUND)

    def __getitem__(self, name: str) -> Fraction:
        return self.numbers[name]

    @property
    def what(self) -> str:
        """The quantity in words."""
        return QUANTITIES[self.quantity].what

    @property
    def at_record(self) -> bool:
        """Whether it is a loss of a record; else it is an accuracy."""
        return QUANTITIES[self.quantity].aim is Aim.BOUND

    @property
    def is_relative(self) -> bool:
        """Whether it is an error over the true total, at this total and, as it falls there, at all larger ones."""
        return "relative_error" in self.numbers

    @property
    def total(self) -> Fraction:
        """The true total at which an accuracy is meant."""
        return self.numbers.get("total", Fraction(0))

    def at_total(self, total: Fraction) -> "Target":
        """Return the same at another true total."""
        return replace(self, numbers=FrozenMap.of({**self.numbers, "total": total}))

    @property
    def widest(self) -> bool:
        """Whether the most noise is wanted that does not yet reach it."""
        return QUANTITIES[self.quantity].aim in (Aim.BELOW, Aim.WITHIN)

    @property
    def exactly(self) -> Fraction:
        """The value that is wanted; of a share of cells, that of the others."""
        first = self.numbers[QUANTITIES[self.quantity].names[0]]
        return 1 - first if self.quantity == "share" else first

    @property
    def wanted(self) -> float:
        """The value that is wanted."""
        return float(self.exactly)

    def value(self, mechanism: Mechanism) -> Any:
        """Return the value that `mechanism` has; raises CalibrationError where it can have none."""
        return QUANTITIES[self.quantity].value(self, mechanism)

    def cost(self, mechanism: Mechanism) -> float:
        """Return what a weight counts: the squared value; of unusable cells the smooth share that is missed."""
        if self.quantity == "unusable":
            return max(LEAST_SHARE, missed(self, _deviations(self, mechanism))[0])
        value = float(self.value(mechanism))
        return value * value  # infinite where a power would overflow

    def gap(self, mechanism: Mechanism) -> float:
        """Return how far off a mechanism is; below 0 with too little noise."""
        own = QUANTITIES[self.quantity].gap
        if own is not None:
            return own(self, mechanism)
        value = self.value(mechanism)
        return -_log_ratio(value, self.exactly) if self.at_record else _log_ratio(value, self.wanted)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether there is noise enough, or, where the most is wanted, too much."""
        if self.quantity == "closed" and not _is_closed(self, mechanism):
            return False
        value, aim = self.value(mechanism), QUANTITIES[self.quantity].aim
        if aim is Aim.BOUND:
            return bool(value <= self.exactly)
        return bool(value > self.wanted if aim is Aim.WITHIN else value >= self.wanted)


def shown(value: Any) -> str:
    """Return a value of a target for people."""
    return up_text(value) if isinstance(value, Fraction) else f"{value:.6g}"


def _log_ratio(value: float | Fraction, wanted: float | Fraction) -> float:
    if value in (0, inf):
        return -inf if value == 0 else inf
    return log(value / wanted)


def _width(target: Target, mechanism: Mechanism) -> float:
    total = 0.0 if mechanism.additive else float(target.total)  # a large one would swallow the width
    lower, upper = mechanism.interval_around(total, target["coverage"])
    return upper - lower


def _width_gap(target: Target, mechanism: Mechanism) -> float:
    """Return ln(width / wanted); of additive noise, which has whole widths, what grows without steps.

    With c the half-width wanted, ln(ln(1 − coverage) / ln P(|Z| > c)): ln(σ/c) and a constant for Laplace noise.
    """
    if not mechanism.additive:
        return _log_ratio(target.value(mechanism), target.wanted)
    outside = beyond(mechanism.log_weights, int(target["interval"] / 2 // mechanism.step))
    if outside in (0.0, 1.0):
        return inf if outside else -inf
    return log(log(1 - target["coverage"]) / log(outside))


def _relative_error(target: Target, mechanism: Mechanism) -> float:
    return mechanism.mean_absolute_error(float(target.total)) / float(target.total)


def _missed(target: Target, mechanism: Mechanism) -> float:
    """Return the share of cells whose |error| is more than `within` times their true total."""
    within = float(target["within"])
    shares = [count * mechanism.error_share(size, within * size) for size, count in target.sizes]
    return max(0.0, 1 - sum(shares) / sum(count for _, count in target.sizes))


def unusable(target: Target, deviations: Floats) -> float:
    """Return the share of cells whose standard error, one of all or one of each size, is beyond `within`·total."""
    sizes, counts = np.array(target.sizes).T
    return float(np.average(float(target["within"]) * sizes < deviations, weights=counts))


def missed(target: Target, deviations: Floats) -> tuple[float, float]:
    """Return the share of cells whose normal errors exceed `within` times their totals, and how it grows with ln V.

    Smooth where `unusable` has steps: the mean of 2Φ(−z) = erfc(z/√2), z = within·total/√V, which grows by φ(z)·z.
    """
    sizes, counts = np.array(target.sizes).T
    z = float(target["within"]) * sizes / deviations
    grows = np.exp(-z * z / 2) / sqrt(2 * pi) * z
    shares = [erfc(each) for each in (z / sqrt(2)).tolist()]
    return float(np.average(shares, weights=counts)), float(np.average(grows, weights=counts))


def _deviations(target: Target, mechanism: Mechanism) -> Floats:
    sizes = [0.0] if mechanism.additive else [size for size, _ in target.sizes]
    return np.sqrt([mechanism.variance(size) for size in sizes])


def _pure_loss(target: Target, mechanism: Mechanism) -> Fraction:
    pure = mechanism.pure_loss_at(target["influence"])
    if pure is None:
        raise CalibrationError("this noise has no pure loss; name a delta beside epsilon")
    return pure


def _delta(target: Target, mechanism: Mechanism) -> Fraction:
    """Return δ at ε, rounded up, of the noise on the lattice where it is drawn.

    Of Gaussian noise it is exact (udfs.losses.distribution), of other noise an upper bound close to it.
    """
    noise, shift = mechanism.lattice_noise, mechanism.shift_at(target["influence"])
    if isinstance(noise, GaussianNoise):
        return delta_above(noise.log_weights, ceil(shift / noise.lattice_step), target["epsilon"])
    if target.quantity == "closed":
        raise CalibrationError("the closed form is one of Gaussian noise; leave bound: closed out")
    pair = noise.pair_at(shift)
    if pair is None:
        return Fraction(1)
    above = delta_of(pair, -up_float(-target["epsilon"]), float(target["delta"]))
    return Fraction(up_text(Fraction(above), DIGITS))


def _delta_gap(target: Target, mechanism: Mechanism) -> float:
    """Return, of Gaussian noise, ln(σ/σ₀), σ₀ being the scale of continuous noise; else ln(ln δ/ln(wanted δ))."""
    noise, shift = mechanism.lattice_noise, mechanism.shift_at(target["influence"])
    if isinstance(noise, GaussianNoise):
        return log(noise.scale / shift / Fraction(_scale_of_one(target)))
    value = target.value(mechanism)
    if not 0 < value < 1:
        return inf if value == 0 else -inf
    return log(log(value) / log(target["delta"]))


def _scale_of_one(target: Target) -> float:
    scale = closed_scale if target.quantity == "closed" else exact_scale
    return scale(float(target["epsilon"]), float(target["delta"]))


def _is_closed(target: Target, mechanism: Mechanism) -> bool:
    """Return whether noise is Gaussian, of a scale by paper 3's closed form for what a record moves, or more.

    That is proved for continuous noise: on the lattice the exact δ(ε) must be at most δ too.
    """
    least, noise = Fraction(_scale_of_one(target)) * mechanism.shift_at(target["influence"]), mechanism.lattice_noise
    return isinstance(noise, GaussianNoise) and noise.scale >= least


QUANTITIES: Mapping[str, Quantity] = {
    "standard_error": Quantity(
        "standard error",
        ("standard_error", "total"),
        lambda target, mechanism: sqrt(mechanism.variance(float(target.total))),
        Aim.AT_LEAST,
    ),
    "mean_absolute_error": Quantity(
        "mean absolute error",
        ("mean_absolute_error", "total"),
        lambda target, mechanism: mechanism.mean_absolute_error(float(target.total)),
        Aim.AT_LEAST,
    ),
    # from end to end, of the interval that is released for a true total were the noise 0; ends are whole steps
    "interval": Quantity(
        "width of the interval", ("interval", "coverage", "total"), _width, Aim.WITHIN, gap=_width_gap
    ),
    "relative_error": Quantity("relative error", ("relative_error", "total"), _relative_error, Aim.BELOW),
    # of |error| over the total; 0.5 is the median
    "quantile": Quantity(
        "quantile of the relative error",
        ("relative_error", "total", "quantile"),
        lambda target, mechanism: (
            mechanism.error_quantile(float(target.total), target["quantile"]) / float(target.total)
        ),
        Aim.WITHIN,
    ),
    "unusable": Quantity(
        "share of unusable cells",
        ("within",),
        lambda target, noise: unusable(target, _deviations(target, noise)),
        Aim.WITHIN,
    ),
    "share": Quantity("share of cells with larger errors", ("share", "within"), _missed, Aim.WITHIN),
    # and a loss v(group) of a record in a cell of so many records, by the offset a (docs/noise.md)
    "group_loss": Quantity(
        "relative error", ("relative_error", "total", "group_loss", "group"), _relative_error, Aim.BELOW
    ),
    "loss": Quantity(
        "loss", ("loss", "influence"), lambda target, mechanism: mechanism.loss_at(target["influence"]), Aim.BOUND
    ),
    "epsilon": Quantity("pure loss", ("epsilon", "influence"), _pure_loss, Aim.BOUND),
    "delta": Quantity("delta", ("delta", "epsilon", "influence"), _delta, Aim.BOUND, gap=_delta_gap),
    "closed": Quantity("delta", ("delta", "epsilon", "influence"), _delta, Aim.BOUND, gap=_delta_gap),
}


# Public distributions of sizes, of records or of cells: the file that a user states to be public, or the economy's.

BUILT_IN: Final = Path(__file__).resolve().parents[2] / "conf" / "economy" / "establishment_sizes.csv"
HEADER: Final = ["value", "count"]
MOST_SIZES: Final = 1_000_000


@dataclass(frozen=True, eq=False)
class Sizes:
    """A public distribution of sizes, never one of confidential microdata.

    `count` records of influence `value` each; values ascend, are at least 0, and one of them is above 0.
    """

    value: NDArray[np.float64]
    count: NDArray[np.float64]

    @property
    def records(self) -> float:
        """How many records there are."""
        return float(self.count.sum())

    @property
    def mean(self) -> float:
        """The mean influence."""
        return float(self.value @ self.count) / self.records


ONE_EACH: Final = Sizes(np.ones(1), np.ones(1))  # of records that are counted: each has an influence of 1


def read_sizes(path: Path = BUILT_IN) -> Sizes:
    """Return the distribution of a CSV file with the header value,count, which its user states to be public.

    A value may stand in several lines. Raises PlanError, which names file and line, on anything else.
    """
    counts: dict[Fraction, Fraction] = {}
    try:
        with file_errors(f"{path}: cannot be read: ", kind=PlanError), input_lines(path) as lines:
            rows = csv.reader(lines)
            if next(rows, None) != HEADER:
                raise PlanError(f"{path}: the first line must be {','.join(HEADER)}")
            for row in filter(None, rows):
                value, count = _row(path, rows.line_num, row)
                counts[value] = counts.get(value, Fraction(0)) + count
                if len(counts) > MOST_SIZES:
                    raise PlanError(f"{path}: more than {MOST_SIZES:,} different values; round them")
    except (UnicodeDecodeError, csv.Error):
        raise PlanError(f"{path}: not a CSV file in UTF-8") from None
    if not any(value > 0 and count > 0 for value, count in counts.items()):
        raise PlanError(f"{path}: no record of a value above 0")
    pairs = sorted((float(value), float(count)) for value, count in counts.items() if count > 0)
    return Sizes(*np.array(pairs).T)


def _row(path: Path, line: int, row: list[str]) -> tuple[Fraction, Fraction]:
    try:
        value, count = map(exact, row)
        if not (value >= 0 and count >= 0):
            raise ValueError
        float(value), float(count)
    except (ValueError, OverflowError):
        raise PlanError(f"{path}: line {line}: must be two numbers of at least 0") from None
    return value, count
