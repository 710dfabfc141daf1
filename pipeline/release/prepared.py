"""Prepared microdata: a folder that `prdp prepare` wrote, and what its manifest proves to a release.

`prepared.json`, written last, names the files with their sizes and times, and the contract that each row was checked
against. A release that finds it does not compare row ids again, since each row is a record there already, by the same
rule. All else it checks as in any microdata: that costs next to nothing while values are decoded. So a wrong or forged
manifest can pass rows off as records, which `duplicates: trust` allows anyway to those who supply the microdata.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.canonical import digest
from pipeline.base.errors import PlanError
from pipeline.engines.totals import measure_columns
from pipeline.microdata import source
from pipeline.plan.keys import Dimension
from pipeline.plan.model import Plan
from pipeline.release.pinned import Microdata
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from udfs.numbers.exact import as_json
from udfs.records.codes import LEVELS
from udfs.records.contract import MeasureColumn
from udfs.records.sums import RecordCounts

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
