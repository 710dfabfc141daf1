"""The public files that a plan names, and which of them are refused by name as parts of microdata.

Whether a file is there, and what is wrong with it, is said to whoever wrote the plan. So none is looked at that lies in
the dataset's own microdata, or is named as parts of microdata are.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.base.errors import PlanError
from pipeline.plan.messages import KeyPath, Mistake
from pipeline.plan.plan_schema import ListSpec, PlanSpec
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.uri import locate

VERSION = re.compile(r"@v[0-9]+$")  # of a table, which it is no part of the location of
CONFIDENTIAL = "may lie in no microdata: neither below dataset.path, nor in a folder such as county=…, nor in Parquet"


def confidential_files(spec: PlanSpec, folder: Path) -> Iterator[Mistake]:
    """Yield a mistake for each file, named relative to `folder`, that may be a part of microdata by its name.

    Nothing is looked at but links.
    """
    path = spec.dataset.path
    try:
        microdata = None if path is None else locate(VERSION.sub("", path), folder=folder)
    except PlanError:  # of another mistake
        microdata = None
    for key, name in _named(spec):
        at = LocalPath(Path(os.path.abspath(public_file(folder, name))))
        if _is_part(name) or (microdata is not None and _lies_in(at, microdata)):
            yield Mistake(key, CONFIDENTIAL)


def public_file(folder: Path, name: str) -> Path:
    """Return the file that a plan in `folder` names; ".." is taken off by name, so that what it leaves is not asked."""
    return Path(os.path.normpath(folder / name))


def _is_part(name: str) -> bool:
    return "=" in name or name.lower().endswith(".parquet")


def _lies_in(at: Location, microdata: Location) -> bool:
    try:
        return at.is_relative_to(microdata) or at.resolve().is_relative_to(microdata.resolve())
    except PlanError:  # links in a circle: whoever follows them says so
        return False


def _named(spec: PlanSpec) -> Iterator[tuple[KeyPath, str]]:
    if spec.domain.cells:
        yield ("domain", "cells"), spec.domain.cells
    for key, each in spec.domain.codes.items():
        if isinstance(each, ListSpec):
            yield ("domain", key), each.list
    for number, query in enumerate(spec.queries):
        for _, mechanism in query.mechanisms:
            if isinstance(weights := getattr(mechanism, "weights", None), str):
                yield ("queries", number, "mechanism"), weights
    for name, wish in (spec.calibrate.queries if spec.calibrate else {}).items():
        if wish.sizes is not None:
            yield ("calibrate", "queries", name, "sizes"), wish.sizes
