"""The microdata of one run, tied to one state: files at a path, or a table of an engine's catalog
(docs/architecture.md, rule 4).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.canonical import digest
from pipeline.engines.protocol import Engine, Input
from pipeline.errors import MicrodataError, PrdpError
from pipeline.microdata import source
from pipeline.microdata.frames import Frame
from pipeline.microdata.source import Chunk
from pipeline.plan.model import Plan
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.tables.totals import measure_columns
from udfs.numbers.exact import as_json
from udfs.records.contract import MeasureColumn


@dataclass(frozen=True)
class Table:
    """The name of a table in a catalog."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class SealedRecords:
    """The records of a DataFrame, sealed in private staging; `source` names them in the ledger, `pin` ties them."""

    chunks: Sequence[Chunk]
    pin: str
    source: str


Microdata = Location | Table | SealedRecords | Frame


@dataclass(frozen=True, eq=False)
class Pinned:
    """What an engine reads, `given`, the digest that it had when it was found, and how to take that digest again."""

    label: str
    given: Input
    digest: str
    now: Callable[[], str]

    def require_unchanged(self) -> None:
        """Return if the microdata are as they were; raises MicrodataError otherwise."""
        if self.now() != self.digest:
            raise MicrodataError(
                f"{self.label}: it changed during the run; nothing is published: run again when it rests"
            )


def require_there(microdata: Microdata, engine: Engine) -> None:
    """Return if there are microdata; raises PlanError or MicrodataError otherwise."""
    if isinstance(microdata, Table):
        engine.table(microdata.name)
    elif not isinstance(microdata, SealedRecords | Frame):
        source.find(microdata)


def pinned(microdata: Microdata, engine: Engine) -> Pinned:
    """Return the microdata as they are now; raises PlanError or MicrodataError where they cannot be read."""
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        return Pinned(f"microdata in table {table.name}", table, table.pin(), table.pin)
    if isinstance(microdata, Frame):
        raise PrdpError("a DataFrame must be sealed before it is summed")
    if isinstance(microdata, SealedRecords):  # nobody without the seal can change them
        return Pinned("the DataFrame", microdata.chunks, microdata.pin, lambda: microdata.pin)
    found = source.find(microdata)
    digest = source.pin(found)  # before the footers are read
    return Pinned(f"microdata {found.root}", list(source.chunks(found)), digest, lambda: _now(found))


def source_of(microdata: Microdata) -> str:
    """Return where the microdata lie, or of a DataFrame what it holds, as the ledger keeps it."""
    if isinstance(microdata, SealedRecords):
        return microdata.source
    if isinstance(microdata, Frame):
        return "DataFrame"
    return f"table {microdata.name}" if isinstance(microdata, Table) else str(microdata)


def _now(found: source.Source) -> str:
    return source.pin(source.find(found.root))


# Prepared microdata: a folder that `prdp prepare` wrote, and what its manifest proves to a release.
#
# `prepared.json`, written last, names the files with their sizes and times, and the contract that each row was checked
# against. A release that finds it does not look for rows of one id again, since each row is a record there already, by
# the same rule. All else it checks as in any microdata: that costs next to nothing while values are decoded. So what a
# wrong or forged manifest could do is to pass rows off as records, which `duplicates: trust` allows whoever gives the
# microdata.


MANIFEST = "prepared.json"
WORK = ".preparing"  # there while a folder is written
VERSION = 1
FILE_NAME = re.compile(r"naics3-([0-9]{3}|none)\.parquet")

Contract = Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """What a manifest says: the dataset, the contract, and each file's name, size in bytes and time in nanoseconds."""

    folder: Path
    dataset: str
    contract: Contract
    files: Mapping[str, tuple[int, int]]


def contract_of(plan: Plan, measures: tuple[MeasureColumn, ...]) -> Contract:
    """Return, as JSON, the rules by which rows of the plan's dataset are records, with the measures checked."""
    types = {measure.name: measure.type for measure in plan.dataset.measures}
    told = {
        m.name: {"column": m.column, "type": types[m.name], "step": as_json(m.step), "nonnegative": m.nonnegative}
        for m in measures
    }
    dataset = plan.dataset
    return {
        "record": dataset.record,
        "unit": dataset.unit,
        "duplicates": dataset.duplicates,
        "bad_records": dataset.bad_records,
        "keys": dict(dataset.keys),
        "measures": told,
    }


def is_prepared(microdata: Microdata, plan: Plan) -> bool:
    """Return whether microdata are prepared, in which case each row is known to be one record by the plan's rules.

    In a store they never are: a copy there has other times than the manifest lists, and is checked like any microdata.

    Raises MicrodataError where they are incomplete, have changed since, or were prepared by other rules or of another
    dataset.
    """
    path = microdata.as_path() if isinstance(microdata, Location) else None
    found = None if path is None else prepared_at(path)
    if found is None:
        return False
    if found.dataset != plan.dataset.name:  # under another name what they cost would be counted apart
        raise MicrodataError(
            f"microdata {found.folder}: it was prepared of dataset {found.dataset}, not of {plan.dataset.name}: "
            "name that dataset in the plan"
        )
    require_as_written(found)
    require_contract(found, plan)
    return True


def prepared_at(path: Path) -> Prepared | None:
    """Return what the manifest at a path says; None where there is no prepared folder.

    Raises MicrodataError where there is one that is not whole.
    """
    try:
        names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    except OSError:
        return None  # the search for microdata tells what it cannot read
    if MANIFEST not in names:
        if WORK in names or any(map(FILE_NAME.fullmatch, names)):
            raise _again(path, f"it has no {MANIFEST}, so prdp prepare did not end")
        return None
    try:
        read = json.loads((path / MANIFEST).read_bytes())
        files = {name: (int(file["bytes"]), int(file["mtime_ns"])) for name, file in read["files"].items()}
        found = Prepared(path, read["dataset"], read["contract"], files)
        whole = read["prepared"] == VERSION and read["contract_digest"] == digest(found.contract)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise _again(path, f"{MANIFEST} is not as this version of prdp writes it")
    return found


def require_as_written(found: Prepared) -> None:
    """Return if the files are those of the manifest, by names, sizes and times; raises MicrodataError otherwise."""
    folder = LocalPath(found.folder)
    present = {file.relative_to(folder): tuple(file.fingerprint()) for file in source.find(folder).files}
    if present != found.files:
        raise _again(found.folder, f"its files are not those that {MANIFEST} lists: they changed, or lost their times")


def require_contract(found: Prepared, plan: Plan) -> None:
    """Return if rows that meet the folder's contract are records by the plan's; raises MicrodataError otherwise.

    Whatever was refused to be bad serves plans that drop bad records too, and rows of which no id stands twice serve
    every rule about those. Where bad records were dropped, what was dropped must be what the plan would drop.
    """
    measures = measure_columns(plan)
    was, wanted = found.contract, contract_of(plan, measures)
    refused = was["bad_records"] == "refuse"
    differing = [key for key in ("record", "unit", "keys") if was[key] != wanted[key]]
    if was["bad_records"] != wanted["bad_records"] and not refused:
        differing.append("bad_records")
    if was["duplicates"] != wanted["duplicates"] and not (refused and was["duplicates"] == "reject"):
        differing.append("duplicates")
    differing += _differing(was, wanted, refused)
    if differing:
        names = ", ".join(f"dataset.{key}" for key in differing)
        raise _again(found.folder, f"it was prepared under another contract, which differs in {names}")


def _differing(was: Contract, wanted: Contract, refused: bool) -> list[str]:
    """Return the keys of measures of which the plan needs what was not checked, or drops what was not dropped."""
    before, now = was["measures"], wanted["measures"]
    if not refused:
        return [f"measures.{name}" for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    added_up = was["duplicates"] == "combine"  # of sums it cannot be told whether each addend was at least 0
    return [
        f"measures.{name}"
        for name, measure in sorted(now.items())
        if any(before.get(name, {}).get(key) != measure[key] for key in ("column", "type", "step"))
        or (added_up and measure["nonnegative"] and not before[name]["nonnegative"])
    ]


def _again(path: Path, what: str) -> MicrodataError:
    return MicrodataError(f"microdata {path}: {what}; run prdp prepare again, or release from the raw microdata")
