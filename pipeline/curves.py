"""Policy curves: what records of growing size lose in each query."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.policy import QueryPolicy
from pipeline.accounting.reference import policy_of
from pipeline.plan.model import Plan
from udfs.exact import up_text

SIZES = tuple(10**power for power in range(8))  # influences that a table shows, in the measure's unit
POINTS = 400  # close enough together for a picture


@dataclass(frozen=True, eq=False)
class Curve:
    """Upper bounds of one policy function at `influence`, ascending, in the unit of `measure`."""

    label: str
    measure: str
    influence: NDArray[np.float64]
    rho: NDArray[np.float64]


def curves(plan: Plan) -> list[Curve]:
    """Return the curve of each sum's policy, or of each part's, over the influences of SIZES."""
    influence = np.geomspace(SIZES[0], SIZES[-1], POINTS)
    return [
        Curve(query.label, query.measure, influence, query.mechanism.loss(influence))
        for query in policy_of(plan).queries
        if query.measure is not None
    ]


def table(plan: Plan) -> list[str]:
    """Return what records of the influences SIZES lose, query by query, as lines of aligned columns."""
    heads = ["rho at an influence of", *(f"{size:,}" for size in SIZES)]
    rows = [[query.label, *_losses(query)] for query in policy_of(plan).queries]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        numbers = "".join(f"   {text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        lines.append(f"    {row[0]:<{widths[0]}}{numbers}".rstrip())
    return lines


def _losses(query: QueryPolicy) -> list[str]:
    met = SIZES if query.measure is not None else (1,)  # on a count, every record has influence 1
    shown = [up_text(query.mechanism.loss_at(Fraction(size)), 4) for size in met]
    return shown + [""] * (len(SIZES) - len(met))
