"""Losses and errors over scales: tables from which a page recomputes both at once, to three digits and more.

Where a loss is a closed form of scale and influence the page has the formula; of other noise it has the ratio of the
tight loss to the paper's bound, over scales × shifts, and reads between by cubic polynomials in logarithms. Grids are
made finer until what is read at their midpoints is right. Stated losses are step functions (docs/tight.md): the page
rounds a shift up to the next knot as `udfs.losses.curve.knots` does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from pipeline.accounting.calibrate import SCALES, scale_of
from udfs.losses.curve import knots
from udfs.losses.tight import tight_losses
from udfs.mechanisms.additive import AdditiveMechanism
from udfs.mechanisms.additive_kinds import Designed
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, exact

RANGE: Final = 32.0  # times more, and less, noise than the plan has
LEAST_STEPS: Final = 0.5  # noise of a smaller scale is none: hardly a value differs from its total
MOST_STEPS: Final = 1e9  # influences of tables, in steps
A_DECADE: Final = (10, 20, 40)  # points of grids, finer and finer
FEW: Final = 12  # steps up to which every number of them is in the grid
FEW_DESIGNED: Final = 2048  # the same of designed noise, whose losses may jump
EXACT: Final = 3e-4  # relative error at midpoints that is good enough
LOGARITHMS, WIDEST = ("log", "groupwise_log"), 2.0  # beyond such a scale values are off by factors of hundreds
TOTALS: Final = (1e-2, 1e10)  # at which errors are known, where they depend on the total
POINTS: Final = 40  # such totals
TABLED: Final = ("generalized_gaussian", "exponential_polylog", "symmetric_stable")  # whose tight loss is no formula


@dataclass(eq=False)
class Family:
    """Mechanisms that differ in their scale alone; `scales` are those that a page can reach, in the measure's unit."""

    mechanism: Mechanism
    scales: list[float] = field(default_factory=list)

    @property
    def scale(self) -> str | None:
        """The name of the parameter that is its scale; None where it has none."""
        return scale_of(type(self.mechanism))

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The least and the largest scale."""
        name = self.scale
        if name is None:
            return 1.0, 1.0
        low, high = min(self.scales) / RANGE, max(self.scales) * RANGE
        on_steps = self.mechanism.additive or self.mechanism.kind == "groupwise_noisy"
        if on_steps and SCALES[name] > 0:
            low = max(low, min(*self.scales, LEAST_STEPS * float(self.mechanism.step)))
        if self.mechanism.kind in LOGARITHMS:
            high = min(high, max(*self.scales, WIDEST))
        while self.at(low) is None and low < min(self.scales):
            low *= 1.25
        while self.at(high) is None and high > max(self.scales):
            high /= 1.25
        return min(low, *self.scales), max(high, *self.scales)

    def at(self, scale: float) -> Mechanism | None:
        """Return the mechanism of a scale; None where there is none."""
        if self.scale is None:
            return self.mechanism
        try:
            return build({**self.mechanism.describe(), self.scale: exact(f"{scale:.9g}")}, self.mechanism.step)
        except ParameterError:
            return None

    def to_json(self, largest: float) -> dict[str, Any]:
        """Return the family for a page; losses are known up to the influence `largest`, in the measure's unit."""
        described = {name: value for name, value in self.mechanism.describe().items() if name != self.scale}
        if "weights" in described:
            described["weights"] = {}
        return {
            "parameters": described,
            "scale": self.scale,
            "step": as_json(self.mechanism.step),
            "least": self.ends[0],
            "most": self.ends[1],
            "losses": self._losses(largest),
            "errors": self._errors(),
        }

    def _losses(self, largest: float) -> dict[str, Any] | None:
        """Return what a page needs of a loss without a closed form; None where it has the formula.

        `pure`: ln P at ln(shift/scale), of noise whose pure loss is no formula; P by steps, and `curve`, the tight loss
        at all knots, of noise without a scale: beyond the last the paper's bound holds. `ratios`: ln(tight loss/paper's
        bound) at scales × shifts in steps; `error`: how far off midpoints are.
        """
        kind, most = self.mechanism.kind, min(MOST_STEPS, max(16 * largest / float(self.mechanism.step), 1e3))
        if kind == "designed":
            assert isinstance(self.mechanism, Designed)
            known, step = [n for n in knots(self.mechanism.log_weights) if n < MOST_STEPS], float(self.mechanism.step)
            losses: Floats = self.mechanism.loss(np.array(known, dtype=np.float64) * step)
            end = 4 * max(FEW_DESIGNED, self.mechanism.log_weights.steps[-1])  # a straight line from there
            some = np.geomspace(FEW_DESIGNED, end, 400).round()
            shifts: Floats = np.unique(np.concatenate([np.arange(1.0, FEW_DESIGNED), some, [MOST_STEPS]]))
            by_steps = {"steps": shifts.tolist(), "values": _digits(self.mechanism.pure_loss(shifts * step))}
            return {"curve": {"steps": known, "losses": _digits(losses)}, "pure": by_steps}
        tables: dict[str, Any] = {}
        if kind == "symmetric_stable" and self.mechanism.describe()["alpha"] != 1:
            u = np.geomspace(1e-4, 1e12, 16 * 12 + 1)
            pure = self.mechanism.pure_loss(u * self.scales[0])
            tables["pure"] = {"shifts": np.log(u).round(9).tolist(), "logs": np.log(pure).round(6).tolist()}
        if kind in TABLED and self.mechanism.tight:
            tables |= self._ratios(most)
        return tables or None

    def _ratios(self, most: float) -> dict[str, Any]:
        for a_decade in A_DECADE:
            scales, count = self._grid(2 * a_decade), int(np.ceil(np.log10(most) * a_decade)) + 1
            steps = np.union1d(np.arange(1.0, FEW + 1), np.rint(np.geomspace(1, most, count)))
            middle = np.setdiff1d(np.rint(np.sqrt(steps[1:] * steps[:-1])), steps)
            x, y, between = np.log(scales), np.log(steps), np.log(middle)
            logs = np.array([self._log_ratios(scale, np.append(steps, middle)) for scale in scales.tolist()])
            ratios, others = logs[::2, : len(steps)], logs[:, len(steps) :]
            coarse = (x[::2], y, ratios)
            error = max(
                np.max(np.abs(_read_all(*coarse, x, y) - logs[:, : len(steps)])),
                np.max(np.abs(_read_all(*coarse, x, between) - others)),
            )
            if error <= EXACT:
                break
        return _rounded({"scales": coarse[0], "steps": coarse[1], "ratios": coarse[2]}) | {"error": float(error)}

    def _log_ratios(self, scale: float, steps: Floats) -> Floats:
        mechanism = self.at(scale)
        assert isinstance(mechanism, AdditiveMechanism)
        shifts = [int(n) * mechanism.fineness for n in steps.tolist()]
        tight = tight_losses(mechanism.log_weights, shifts)  # type: ignore[arg-type]
        pure = mechanism.pure_loss(steps * float(mechanism.step))
        return np.log(np.array(tight) / (np.tanh(pure / 2) * pure))

    def _grid(self, a_decade: int) -> Floats:
        low, high = self.ends
        if high <= low:
            return np.array([low])
        count = 2 * -(-int(np.ceil(np.log10(high / low) * a_decade)) // 2) + 1  # odd: the last is on the coarser grid
        grid = [float(f"{scale:.9g}") for scale in np.geomspace(low, high, max(count, 7)).tolist()]
        return np.array(grid)

    def _errors(self) -> dict[str, Any]:
        """Return logarithms of mean absolute errors and standard errors at scales × totals; None: infinite.

        `offset`: totals are given as ln(total + offset); one total where errors do not depend on it.
        """
        offset, totals = 1.0, np.zeros(1)
        if not self.mechanism.additive:
            described = self.mechanism.describe()
            known = described.get("a") or described.get("sigma") or 1
            offset = max(float(exact(known)), TOTALS[0])  # type: ignore[arg-type]
            totals = np.geomspace(offset, TOTALS[1] + offset, POINTS) - offset
        scales = self._grid(16)
        mechanisms = [self.at(scale) for scale in scales.tolist()]

        def of(error: Callable[[Mechanism, float], float]) -> list[list[float | None]]:
            values = [[error(each, total) for total in totals.tolist()] for each in mechanisms if each is not None]
            return [[round(float(np.log(v)), 6) if 0 < v < np.inf else None for v in row] for row in values]

        return _rounded({"scales": np.log(scales), "totals": np.log(totals + offset)}) | {
            "offset": offset,
            "mean": of(lambda mechanism, total: mechanism.mean_absolute_error(total)),
            "standard": of(lambda mechanism, total: mechanism.variance(total) ** 0.5),
        }


def families_of(mechanisms: Sequence[Mechanism]) -> tuple[list[Family], list[int]]:
    """Return the families of mechanisms, and the number of each one's."""
    known: dict[Any, int] = {}
    families: list[Family] = []
    numbers = []
    for mechanism in mechanisms:
        name = scale_of(CATALOGUE[mechanism.kind])
        described = mechanism.describe()
        scale = described.pop(name) if name is not None else 1
        key = repr((sorted(described.items()), mechanism.step))
        if key not in known:
            known[key] = len(families)
            families.append(Family(mechanism))
        families[known[key]].scales.append(float(exact(scale)))  # type: ignore[arg-type]
        numbers.append(known[key])
    return families, numbers


def read(x: Floats, y: Floats, values: Floats, at_x: float, at_y: float) -> float:
    """Return what a page reads of a table between its points: cubic polynomials through the four nearest each way."""
    return float(_read_all(x, y, values, np.array([at_x]), np.array([at_y]))[0, 0])


def _read_all(x: Floats, y: Floats, values: Floats, at_x: Floats, at_y: Floats) -> Floats:
    read_there: Floats = _weights(x, at_x) @ values @ _weights(y, at_y).T
    return read_there


def _weights(knots_of: Floats, points: Floats) -> Floats:
    """Return a row of weights of the knots for each place: four of them are not 0 (Lagrange's polynomials)."""
    rows = np.zeros((len(points), len(knots_of)))
    for row, place in zip(rows, points.tolist(), strict=True):
        first = min(max(int(np.searchsorted(knots_of, place)) - 2, 0), max(len(knots_of) - 4, 0))
        near = knots_of[first : first + 4].tolist()
        row[first : first + 4] = [prod((place - o) / (knot - o) for o in near if o != knot) for knot in near]
    return rows


def _rounded(arrays: Mapping[str, Floats]) -> dict[str, Any]:
    return {name: np.round(values, 9 if values.ndim == 1 else 6).tolist() for name, values in arrays.items()}


def _digits(values: Floats) -> list[float]:
    return [float(f"{value:.9g}") for value in values.tolist()]


def scale_at(mechanism: Mechanism) -> Fraction | None:
    """Return a mechanism's scale; None where it has none."""
    name = scale_of(type(mechanism))
    return None if name is None else exact(getattr(mechanism, name))
