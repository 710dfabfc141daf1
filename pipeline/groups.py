"""What the records of groups of some sizes lose, where larger groups lose less (MATH section 7).

At public counts only: the count of an actual cell is confidential, and so is the group-wise loss that it implies.
"""

from fractions import Fraction
from typing import Any

from pipeline.plan.model import Query
from udfs.exact import up_float
from udfs.mechanisms.groupwise_log import GroupwiseLog

COUNTS = (1, 10, 100, 1_000, 10_000)


def group_losses(query: Query) -> list[dict[str, Any]]:
    """Return as JSON v(count) of each part with group-wise losses at each of COUNTS: upper bounds for one record."""
    return [
        ({} if part.name is None else {"part": part.name})
        | {"count": count, "rho": up_float(part.mechanism.group_loss_at(Fraction(count)))}
        for part in query.parts
        if isinstance(part.mechanism, GroupwiseLog)
        for count in COUNTS
    ]
