"""The microdata of one run, tied to one state (docs/architecture.md, rule 4): files, a table or a DataFrame."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.canonical import digest
from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError
from pipeline.engines.totals import measure_columns
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.frames import Frame
from pipeline.microdata.lakehouse import Place, TableVersion, microdata_at
from pipeline.microdata.read import require_schema
from pipeline.microdata.source import Chunk, Identity, identity_of, require_types
from pipeline.plan.domain.keys import Dimension
from pipeline.plan.model import Plan
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from udfs.numbers.exact import as_json
from udfs.records.codes import LEVELS
from udfs.records.contract import MeasureColumn
from udfs.records.sums import RecordCounts

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine, Input
    from udfs.records.decoding import SumSpec

FOLDER = "frame"  # begins the names of folders in which a DataFrame's records are sealed


@dataclass(frozen=True)
class Table:
    """The name of a table in a catalog."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class SealedRecords:
    """The records of a DataFrame, sealed in private staging."""

    folder: str  # the name of the one that they are sealed in
    chunks: Sequence[Chunk]
    pin: str
    source: str  # their name in the ledger
    synthetic: bool | None = None  # whether the frame carries the mark of `prdp generate`, where that can be known


Microdata = Location | TableVersion | Table | SealedRecords | Frame


@dataclass(frozen=True, eq=False)
class Pinned:
    """The input of an engine, with the digest that it had at first; `now` takes that digest again."""

    label: str
    input: "Input"
    digest: str
    now: Callable[[], str]

    def require_unchanged(self) -> None:
        """Return if the microdata are as they were; raises MicrodataError otherwise."""
        if self.now() != self.digest:
            raise MicrodataError(
                f"{self.label}: it changed during the run; nothing is published: retry once nothing writes to it"
            )


def require_readable(microdata: Microdata, engine: "Engine", spec: "SumSpec", record: str) -> None:
    """Raise PlanError where there are no microdata with the columns of a scan and `record`; reads no record.

    A DataFrame's columns are checked before it is sealed.
    """
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        columns = list(dict.fromkeys([*spec.columns, record]))
        require_types(f"microdata in table {table.name}", table.schema(columns), spec)
    elif not isinstance(microdata, SealedRecords | Frame):
        require_schema(source.find(microdata), spec, record)


def pinned(microdata: Microdata, engine: "Engine") -> Pinned:
    """Return the microdata as they are now; raises PlanError where they cannot be read."""
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        return Pinned(f"microdata in table {table.name}", table, table.pin(), table.pin)
    if isinstance(microdata, Frame):
        raise PrdpError("a DataFrame must be sealed before it is summed")
    if isinstance(microdata, SealedRecords):  # nobody without the seal can change them
        return Pinned("the DataFrame", microdata.chunks, microdata.pin, lambda: microdata.pin)
    files = source.find(microdata)
    pin = source.pin(files)  # before the footers are read
    return Pinned(
        f"microdata {microdata}", list(source.chunks(files)), pin, lambda: source.pin(source.find(files.root))
    )


def identity(microdata: Microdata) -> Identity:
    """Return what is known of the microdata wherever they lie: of a table nothing, of a DataFrame its mark if any.

    Nothing either where files cannot be read: what reads them next says why. Raises StateError where some files are
    synthetic and others not.
    """
    if isinstance(microdata, SealedRecords | Frame):
        return Identity(synthetic=microdata.synthetic)
    if isinstance(microdata, Table):
        return Identity()
    try:
        return identity_of(source.find(microdata))
    except PlanError:
        return Identity()


def source_of(microdata: Microdata) -> str:
    """Return the name of the microdata in the ledger: where they lie, or a DataFrame's contents."""
    if isinstance(microdata, SealedRecords):
        return microdata.source
    if isinstance(microdata, Frame):
        return "DataFrame"
    if isinstance(microdata, TableVersion):  # whichever version: they have most records in common
        return str(microdata.folder)
    return f"table {microdata.name}" if isinstance(microdata, Table) else str(microdata)


# Whether microdata are files of another dataset under other names: links and mounts lead to them too.


def require_own_files(ledger: Ledger, dataset: str, microdata: Microdata) -> None:
    """Raise StateError where a file of `microdata` is one of another registered dataset's.

    A table may be no other dataset's either of which a release is charged, in whichever version.
    """
    if isinstance(microdata, TableVersion):
        for other, location in ledger.sources():
            if location == source_of(microdata) and other != dataset:
                raise StateError(
                    f"dataset {dataset}: its microdata {microdata} are those of dataset {other}: name that one"
                )
    _require_apart(dataset, microdata, _registered(ledger))


def require_new_files(ledger: Ledger, dataset: str, at: str) -> None:
    """Raise StateError where a file at `at` is one of another dataset, registered or released."""
    if not at.startswith(("table ", "DataFrame ")):
        known = dict.fromkeys([*_registered(ledger), *sorted(ledger.sources(), key=str)])
        _require_apart(dataset, microdata_at(locate(at)), known)


def _registered(ledger: Ledger) -> Iterable[tuple[str, str | None]]:
    return ((budget.name, budget.source) for budget in ledger.budgets().values())


def _require_apart(dataset: str, microdata: Microdata, known: Iterable[tuple[str, str | None]]) -> None:
    mine = _files(microdata) if isinstance(microdata, Place) else set()
    for other, location in known:
        if not mine or other == dataset or location is None or location.startswith(("table ", "DataFrame")):
            continue
        if mine & _files(microdata_at(locate(location))):
            raise StateError(
                f"dataset {dataset}: its microdata {microdata} are files of dataset {other}, {location}: name that one"
            )


def _files(microdata: Place) -> set[tuple[int, int]]:
    """Return device and number of each file; none of a store, and none where they cannot be found or read."""
    if microdata.remote:
        return set()
    try:
        facts = [stat(str(file)) for file in source.find(microdata).files]
    except (PrdpError, OSError):
        return set()
    return {(each.st_dev, each.st_ino) for each in facts}


# Prepared microdata: a folder that `prdp prepare` wrote, and what its manifest proves to a release.
#
# `prepared.json`, written last, names the files with their sizes and times, and the contract that each row was checked
# against. A release that finds it does not compare row ids again, since each row is a record there already, by the same
# rule. All else it checks as in any microdata: that costs next to nothing while values are decoded. So a wrong or
# forged manifest can pass rows off as records, which `duplicates: trust` allows anyway to those who supply the
# microdata.

MANIFEST = "prepared.json"
WORK = ".preparing"  # there while a folder is written
VERSION = 2
FILE_NAME = re.compile(r"(naics3|codes)-([0-9]{3}|none)\.parquet")

Contract = Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A manifest's dataset, contract, and files: name → size in bytes and time in nanoseconds.

    `before`: the bad records that were dropped, which no scan of the folder sees.
    """

    folder: Path
    dataset: str
    contract: Contract
    files: Mapping[str, tuple[int, int]]
    before: RecordCounts


def contract_of(plan: Plan, measures: tuple[MeasureColumn, ...]) -> Contract:
    """Return, as JSON, the rules by which rows of the plan's dataset are records, with the measures checked."""
    types = {measure.name: measure.type for measure in plan.dataset.measures}
    checked = {
        m.name: {"column": m.column, "type": types[m.name], "step": as_json(m.step), "nonnegative": m.nonnegative}
        for m in measures
    }
    dataset = plan.dataset
    return {name: getattr(dataset, name) for name in ("record", "unit", "duplicates", "bad_records")} | {
        "keys": {key: _form(column, plan.domain.keys[key]) for key, column in dataset.keys.items()},
        "measures": checked,
    }


def _form(column: str, dimension: Dimension) -> Any:
    if dimension.key in LEVELS and not dimension.optional:
        return column
    digits = None if dimension.key in LEVELS else dimension.digits
    return {"column": column, "digits": digits, "optional": dimension.optional}


def prepared_for(microdata: Microdata, plan: Plan) -> Prepared | None:
    """Return what proves that microdata are prepared, each row one record by the plan's rules; None where they are not.

    In a store they never are: a copy there has other times than the manifest lists, and is checked like any microdata.
    Raises PlanError where they are incomplete or changed since, or were prepared by other rules or of another dataset.
    """
    path = microdata.as_path() if isinstance(microdata, Location) else None
    prepared = None if path is None else prepared_at(path)
    if prepared is None:
        return None
    if prepared.dataset != plan.dataset.name:  # under another name their losses would be counted apart
        raise PlanError(
            f"microdata {prepared.folder}: it was prepared of dataset {prepared.dataset}, not of {plan.dataset.name}: "
            "name that dataset in the plan"
        )
    require_as_written(prepared)
    require_contract(prepared, plan)
    return prepared


def prepared_at(path: Path) -> Prepared | None:
    """Return the manifest at a path, None where there is no prepared folder; PlanError where one is incomplete."""
    try:
        names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    except OSError:
        return None  # the search for microdata reports what it cannot read
    if MANIFEST not in names:
        if WORK in names or any(map(FILE_NAME.fullmatch, names)):
            raise _again(path, f"it has no {MANIFEST}, so prdp prepare did not end")
        return None
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        files = {name: (int(file["bytes"]), int(file["mtime_ns"])) for name, file in manifest["files"].items()}
        before = RecordCounts(left_out=int(manifest["dropped"]))
        prepared = Prepared(path, manifest["dataset"], manifest["contract"], files, before)
        valid = manifest["prepared"] == VERSION and manifest["contract_digest"] == digest(prepared.contract)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise _again(path, f"{MANIFEST} is not as this version of prdp writes it")
    return prepared


def require_no_part(at: Location) -> None:
    """Raise PlanError where a location is named as a single file of a prepared folder; nothing is looked at but links.

    Such files are named by codes: whether one is there tells of an industry.
    """
    named = [at.name]
    with suppress(PlanError):
        named.append(at.resolve().name)
    if any(map(FILE_NAME.fullmatch, named)):
        raise PlanError(f"microdata {at}: named as a file of a folder that prdp prepare wrote: name the folder")


def require_as_written(prepared: Prepared) -> None:
    """Return if the files are those of the manifest, by names, sizes and times; raises PlanError otherwise."""
    folder = LocalPath(prepared.folder)
    present = {file.relative_to(folder): tuple(file.fingerprint()) for file in source.find(folder).files}
    if present != prepared.files:
        lost = f"its files are not those that {MANIFEST} lists: they changed, or lost their times"
        raise _again(prepared.folder, lost)


def require_contract(prepared: Prepared, plan: Plan) -> None:
    """Return if rows that meet the folder's contract are records by the plan's; raises PlanError otherwise.

    Where bad records were refused, none is there, which serves plans that drop them too; where row ids that stand twice
    were refused, too, each rule about duplicates gives the same records. Where bad records were dropped, those must be
    the ones that the plan would drop.
    """
    measures = measure_columns(plan)
    was, wanted = prepared.contract, contract_of(plan, measures)
    refused = was["bad_records"] == "refuse"
    differing = [key for key in ("record", "unit", "keys") if was[key] != wanted[key]]
    if was["bad_records"] != wanted["bad_records"] and not refused:
        differing.append("bad_records")
    if was["duplicates"] != wanted["duplicates"] and not (refused and was["duplicates"] == "reject"):
        differing.append("duplicates")
    differing += _differing(was, wanted, refused)
    if differing:
        names = ", ".join(f"dataset.{key}" for key in differing)
        raise _again(prepared.folder, f"it was prepared under another contract, which differs in {names}")


def _differing(was: Contract, wanted: Contract, refused: bool) -> list[str]:
    """Return the keys of measures of which the plan needs what was not checked, or drops what was not dropped."""
    before, now = was["measures"], wanted["measures"]
    if not refused:
        return [f"measures.{name}" for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    added_up = was["duplicates"] == "combine"  # sums do not show whether each addend was at least 0
    return [
        f"measures.{name}"
        for name, measure in sorted(now.items())
        if any(before.get(name, {}).get(key) != measure[key] for key in ("column", "type", "step"))
        or (added_up and measure["nonnegative"] and not before[name]["nonnegative"])
    ]


def _again(path: Path, why: str) -> PlanError:
    return PlanError(f"microdata {path}: {why}; run prdp prepare again, or release from the raw microdata")
