"""Paths and URIs as users write them."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.base.errors import PlanError

if TYPE_CHECKING:
    from pipeline.storage.location import Location

LocationLike = str | os.PathLike[str]


def location(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, without links; PlanError begins with `what`."""
    return located(at, what).resolve(what)


def located(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, as it is written; PlanError begins with `what`."""
    from pipeline.storage.paths import locate  # noqa: PLC0415

    if not isinstance(at, str | os.PathLike):
        raise PlanError(f"{what}: a {type(at).__name__} is no location; write it to a file, and give its path")
    return locate(os.fspath(at), what=what)


def locations(of: Sequence[LocationLike] | LocationLike, what: str) -> "list[Location]":
    """Return the locations of one or several paths or URIs, without links."""
    return [location(each, what) for each in ([of] if isinstance(of, str | os.PathLike) else of)]
