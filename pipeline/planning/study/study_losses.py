"""What a study needs of synthetic microdata, exactly, and the losses of mechanisms on it.

A loss is a function of the influence alone. So counts of influences, which are whole numbers, are the exact
distribution of any mechanism's losses, whatever the engine and however the data are cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.base.html import QUANTILES
from pipeline.planning.study.equal_mechanisms import Line
from pipeline.planning.study.study_model import Panel, Study
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import up_float

GROWTH = (1_000, 10_000)  # influences between which the growth of a loss is stated


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Sums of the cells that have records, in the order of the cells' numbers, in the measure's unit.

    `squares`: of records; `firm_squares`: of each firm's total in the cell; `records` and `firms`: how many.
    """

    cells: Int64s
    totals: Int64s
    records: Int64s
    firms: Int64s
    squares: Floats
    firm_squares: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Aggregates:
    """How many records (`counts`) have each of the distinct ascending `influences`, and the cells that have records.

    `cells_in_all` counts the cells without records too.
    """

    influences: Int64s
    counts: Int64s
    cells: Cells
    cells_in_all: int

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def share(self, chosen: Mask) -> float:
        """Return the share of records whose influence is chosen; 0 without records."""
        return float(self.counts[chosen].sum() / self.records) if self.records else 0.0


@dataclass(frozen=True, eq=False)
class PanelLosses:
    """A panel's curves, and each one's losses at the distinct influences of the records."""

    panel: Panel
    lines: tuple[Line, ...]
    losses: tuple[Floats, ...]

    @classmethod
    def of(cls, panel: Panel, lines: Sequence[Line], data: Aggregates) -> "PanelLosses":
        """Return the losses of a panel: upper bounds, within one part in 10⁹."""
        influences = data.influences.astype(np.float64)
        return cls(panel, tuple(lines), tuple(line.mechanism.loss(influences) for line in lines))


def quantile(losses: Floats, counts: Int64s, share: Fraction) -> float:
    """Return the least loss that at least `share` of all records do not exceed: exact, from counts."""
    order = np.argsort(losses, kind="stable")
    cumulative = np.cumsum(counts[order])
    needed = -(-int(cumulative[-1]) * share.numerator // share.denominator)
    return float(losses[order][np.searchsorted(cumulative, needed)])


def panel_json(panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    """Return a panel's losses as JSON."""
    equal = panel.panel.equal
    return {
        "name": panel.panel.name,
        "title": panel.panel.title,
        "equal": {"variance": float(equal.variance), "total": float(equal.total)},
        "entries": [
            _line_json(line, losses, panel, data, study) | _compared_with(panel.losses[0], losses, data)
            for line, losses in zip(panel.lines, panel.losses, strict=True)
        ],
    }


def _line_json(line: Line, losses: Floats, panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    mechanism, variance = line.mechanism, line.mechanism.variance(float(panel.panel.equal.total))
    growth = [mechanism.loss_at(Fraction(size)) for size in GROWTH]
    return {
        "label": line.label,
        "policy": line.policy,
        "mechanism": mechanism.describe(),
        "releasable": line.releasable,
        "equal_by": line.equal_by,
        "variance": variance if np.isfinite(variance) else None,
        "losses": [{"influence": size, "rho": up_float(mechanism.loss_at(Fraction(size)))} for size in study.sizes],
        "growth": {"from": GROWTH[0], "to": GROWTH[1], "factor": float(growth[1] / growth[0])},
        "quantiles": {q: quantile(losses, data.counts, Fraction(q)) for q in QUANTILES} if data.records else {},
        "largest": float(losses.max(initial=0.0)),
        "within": [{"rho": float(limit), "share": data.share(losses <= float(limit))} for limit in study.limits],
    }


def _compared_with(first: Floats, losses: Floats, data: Aggregates) -> dict[str, Any]:
    """Return how a curve compares with the panel's first: where it loses less, and what share of records does."""
    less = losses < first
    not_less = np.flatnonzero(~less)
    start = int(not_less[-1]) + 1 if len(not_less) else 0
    return {
        "loses_less_than_first": {
            "share": data.share(less),
            "from_influence": int(data.influences[start]) if start < len(less) else None,
            "share_from_there": data.share(np.arange(len(less)) >= start),
        }
    }
