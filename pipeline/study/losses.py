"""Distributions of losses from exact counts of influences, and how mechanisms compare in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.diagnostics.distribution import QUANTILES
from pipeline.study.collect import Collected
from pipeline.study.equal import Line
from pipeline.study.model import Panel, Study
from udfs.exact import up_float

Floats = NDArray[np.float64]

GROWTH = (1_000, 10_000)  # influences between which the growth of a loss is told


@dataclass(frozen=True, eq=False)
class PanelLosses:
    """A panel's curves, and each one's losses at the distinct influences of the records."""

    panel: Panel
    lines: tuple[Line, ...]
    losses: tuple[Floats, ...]


def panel_losses(panel: Panel, lines: Sequence[Line], found: Collected) -> PanelLosses:
    """Return the losses of a panel: upper bounds, within one part in 10⁹."""
    influences = found.influences.astype(np.float64)
    return PanelLosses(panel, tuple(lines), tuple(line.mechanism.loss(influences) for line in lines))


def quantile(losses: Floats, counts: NDArray[np.int64], share: Fraction) -> float:
    """Return the least loss that at least `share` of all records do not exceed: exact, from counts."""
    order = np.argsort(losses, kind="stable")
    whole = np.cumsum(counts[order])
    needed = -(-int(whole[-1]) * share.numerator // share.denominator)
    return float(losses[order][np.searchsorted(whole, needed)])


def described(panel: PanelLosses, found: Collected, study: Study) -> dict[str, Any]:
    """Return a panel as JSON."""
    first = panel.losses[0]
    return {
        "name": panel.panel.name,
        "title": panel.panel.title,
        "equal": {"variance": float(panel.panel.equal.variance), "total": float(panel.panel.equal.total)},
        "entries": [
            _line(line, losses, panel, found, study) | _against(first, losses, found)
            for line, losses in zip(panel.lines, panel.losses, strict=True)
        ],
    }


def _line(line: Line, losses: Floats, panel: PanelLosses, found: Collected, study: Study) -> dict[str, Any]:
    mechanism, variance = line.mechanism, line.mechanism.variance(float(panel.panel.equal.total))
    counts, records = found.counts, found.records
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
        "quantiles": {q: quantile(losses, counts, Fraction(q)) for q in QUANTILES} if records else {},
        "largest": float(losses.max(initial=0.0)),
        "within": [{"rho": float(limit), "share": share_of(losses <= float(limit), found)} for limit in study.limits],
    }


def _against(first: Floats, losses: Floats, found: Collected) -> dict[str, Any]:
    """Return how a curve compares with the panel's first: where it loses less, and what share of records does."""
    less = losses < first
    beyond = np.flatnonzero(~less)  # influences at which it does not lose less
    start = int(beyond[-1]) + 1 if len(beyond) else 0
    from_here_on = int(found.influences[start]) if start < len(less) else None
    return {
        "loses_less_than_first": {
            "share": share_of(less, found),
            "from_influence": from_here_on,
            "share_from_there": share_of(np.arange(len(less)) >= start, found),
        }
    }


def share_of(chosen: NDArray[np.bool_], found: Collected) -> float:
    """Return the share of records whose influence is chosen."""
    return float(found.counts[chosen].sum() / found.records) if found.records else 0.0
