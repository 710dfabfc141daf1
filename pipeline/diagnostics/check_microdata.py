"""A check of microdata before a release: recorded in the ledger, its report in a private file; confidential.

Nothing is summed, drawn or charged. What is found leaves nowhere but in the report, and as found or not.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.accountant import SHARE
from pipeline.base.errors import PlanError, StateError, arg, file_errors, nearest
from pipeline.diagnostics.check_scan import BEYOND, CODE, LEFT_OUT, ROWS, CodeJudge, Found, LookAt, OneId, Seen, Wrong
from pipeline.diagnostics.diagnose import RecordedJob
from pipeline.engines.protocol import grouped
from pipeline.engines.totals import contract_checked, row_by_row
from pipeline.ledger.entries import CHECKED
from pipeline.microdata import source
from pipeline.microdata.read import mistakes, schema_of
from pipeline.microdata.source import Source
from pipeline.plan.model import Plan, default_out
from pipeline.plan.total_policy import left_out_test_of
from pipeline.release.attempts import release_folders, require_outside
from pipeline.release.input_records import ByRecord, bucket_count
from pipeline.release.pinned import prepared_for
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import prepare_root, scratch
from udfs.records.contract import RULE_TEXT, Rule
from udfs.records.decoding import CodeColumn, SumSpec

# The report of a check, confidential: what was found, what is no mistake but good to know, and repairs.
#
# Repairs are of the file, and in the plan of column names, format and vintage alone. Codes of the domain, limits,
# scales and references are never proposed: a plan whose parameters follow its microdata is outside the guarantee.

CODES_SHOWN = 20  # of one kind, those with most rows
FILES_SHOWN = 20  # with mistakes of schema
BY_LISTS = RULE_TEXT[Rule.CODE]  # told code by code
TWICE = RULE_TEXT[Rule.TWICE]
BY_ID = {RULE_TEXT[rule] for rule in (Rule.TWICE, Rule.DIFFERS, Rule.BEYOND)}  # counted by ids, not by rows

OF_CODES: Mapping[Wrong, str] = {  # what to do in the file
    Wrong.EMPTY: "write a code in every row of {column}",
    Wrong.LOST_ZEROS: "write {column} as text with its leading zeros",
    Wrong.DECIMALS: "write {column} as text, not as numbers",
    Wrong.SPACES: "write {column} without spaces",
    Wrong.RANGE: "write each row's own code of six digits into {column}, not its sector's",
    Wrong.COARSE: "write each row's own code of six digits into {column}",
    Wrong.DIGITS: "correct {column}: its codes have another number of digits than the key's",
    Wrong.TEXT: "correct {column}, or name the column that holds the codes",
    Wrong.EARLIER: "recode {column} to {own}, which holds the successors",
    Wrong.LATER: "recode {column} to {own}",
    Wrong.UNKNOWN: "correct {column}: no public list of any vintage holds these codes",
}
OF_VINTAGES = (Wrong.EARLIER, Wrong.LATER)
OF_RULES: Mapping[str, str] = {
    RULE_TEXT[Rule.OWNER]: "write an owner in every row of {column}",
    RULE_TEXT[Rule.RECORD]: "write an id in every row of {column}",
    RULE_TEXT[Rule.DIFFERS]: "write the same {column} in all rows of one id",
    RULE_TEXT[Rule.LINE]: "write each record on one line, with the header's fields, quotes closed",
    TWICE: "write each id once, unless its rows are meant",
}


@dataclass(frozen=True, eq=False, repr=False)
class Checked:
    """What a check saw."""

    spec: SumSpec
    columns: Sequence[str] | None  # those of the first file that could be read; None: of none
    mistakes: Sequence[PlanError]  # of each file's schema
    scanned: Found | None  # what the scan found; None: the schema did not let it begin
    ids: bool  # whether ids were compared


def report(plan: Plan, judges: Sequence[CodeJudge], checked: Checked, share: Fraction) -> dict[str, Any]:
    """Return the report as JSON; `findings` is empty where nothing is wrong. `share` of the rows may be left out."""
    spec = checked.spec
    made: dict[str, Any] = {
        "confidential": True,
        "release": plan.release,
        "dataset": plan.dataset.name,
        "plan_digest": plan.digest,
        "columns": list(_column_facts(plan, spec, checked.columns)),
        "columns_found": None if checked.columns is None else list(checked.columns),
        "files": [list(error.lines) for error in checked.mistakes],
        "ids_compared": checked.ids,
    }
    scanned = checked.scanned
    if scanned is not None:
        made["rows"] = sum(count for seen, count in scanned.seen.items() if seen.what == ROWS)
        made["left_out"] = scanned.seen[Seen(LEFT_OUT)]
        made["rules"] = list(_rules(spec, scanned.broken))
        made["codes"] = list(_codes(judges, scanned))
        made["beyond_references"] = {
            seen.of or "any measure": count for seen, count in sorted(scanned.seen.items()) if seen.what == BEYOND
        }
    made["findings"] = list(_findings(made, share))
    made["notes"] = list(_notes(plan, made))
    made["repairs"] = {"file": list(_file_repairs(made)), "plan": list(_plan_repairs(made))}
    return made


def text_of(made: Mapping[str, Any]) -> str:
    """Return the report for people."""
    lines = [
        "CONFIDENTIAL: a check of microdata, which tells of records",
        f"release {made['release']}, dataset {made['dataset']}, plan {made['plan_digest']}",
        "",
        "Columns",
    ]
    for column in made["columns"]:
        near = f" (nearest: {column['nearest']})" if column["nearest"] else ""
        state = {True: "found", False: f"not found{near}", None: "unknown"}[column["found"]]
        lines.append(f"  {column['key']}: {column['column']}: {state}")
    if made["columns_found"] is not None:
        lines.append(f"  all columns found: {', '.join(made['columns_found'])}")
    if "rows" in made:
        lines += ["", f"Rows: {made['rows']:,}", *(f"  {_counted(each)}" for each in made["rules"])]
    for kind in made.get("codes", []):
        lines += ["", f"Codes of {kind['column']}: {kind['wrong']}: {_rows(kind['rows'])}"]
        for code in kind["codes"]:
            meant = f" ({code['meant']})" if code["meant"] else ""
            lines.append(f"  {code['rows']:,}: {code['code']}{meant}")
    for title, texts in (
        ("Found", made["findings"] or ["nothing"]),
        ("To know", made["notes"]),
        ("Repairs of the file", made["repairs"]["file"]),
        ("Repairs of the plan", made["repairs"]["plan"]),
    ):
        lines += ["", title, *(f"  {text}" for text in texts)] if texts else []
    return "\n".join(lines) + "\n"


def needed_columns(plan: Plan, spec: SumSpec) -> dict[str, str]:
    """Return the columns that a plan needs, by the key of the plan that names each."""
    dataset = plan.dataset
    named = {"dataset.record": dataset.record} | {f"dataset.keys.{key}": name for key, name in dataset.keys.items()}
    if dataset.owner is not None:
        named["dataset.unit"] = dataset.owner
    return named | {f"dataset.measures.{measure.name}.column": measure.column for measure in spec.measures}


def _column_facts(plan: Plan, spec: SumSpec, present: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    needed = needed_columns(plan, spec)
    free = [name for name in present or () if name not in needed.values()]
    for key, column in needed.items():
        there = None if present is None else column in present
        near = nearest(column, free) if there is False else None
        yield {"key": key, "column": column, "found": there, "nearest": near}


def _rules(spec: SumSpec, broken: Counter[int]) -> Iterator[dict[str, Any]]:
    rows: Counter[tuple[str, str]] = Counter()
    for cell, count in broken.items():
        rows[spec.broken_rule(cell)] += count
    for (column, rule), count in sorted(rows.items()):
        yield {"column": column, "rule": rule, "count": count, "of": "id" if rule in BY_ID else "row"}


def _codes(judges: Sequence[CodeJudge], scanned: Found) -> Iterator[dict[str, Any]]:
    for judge in judges:
        own = " or ".join(map(str, judge.own))
        for wrong in Wrong:
            mine = {
                seen: count
                for seen, count in scanned.seen.items()
                if (seen.what, seen.of, seen.wrong) == (CODE, judge.key.column, wrong.name)
            }
            if not mine:
                continue
            most = sorted(((count, seen.code, seen.meant) for seen, count in mine.items() if seen.code), reverse=True)
            yield {
                "column": judge.key.column,
                "wrong": wrong.value,
                "kind": wrong.name,
                "rows": sum(mine.values()),
                "own_vintage": own or None,
                "vintages": sorted({seen.meant for seen in mine if seen.meant}) if wrong in OF_VINTAGES else [],
                "codes": [{"code": code, "meant": meant, "rows": n} for n, code, meant in most[:CODES_SHOWN]],
            }


def _findings(made: Mapping[str, Any], share: Fraction) -> Iterator[str]:
    for lines in made["files"][:FILES_SHOWN]:
        yield "; ".join(lines)
    if len(made["files"]) > FILES_SHOWN:
        yield f"{len(made['files'])} files in all have such mistakes"
    if made.get("rows") == 0:
        yield "the microdata hold no row"
    for each in made.get("rules", []):
        if each["rule"] != BY_LISTS:
            yield _counted(each)
    for kind in made.get("codes", []):
        if kind["kind"] != Wrong.OUTSIDE.name:
            yield f"{_rows(kind['rows'])}: the code of {kind['column']} is {kind['wrong']}"
    if (left_out := made.get("left_out", 0)) > share * made.get("rows", 0):
        yield (
            f"{_rows(left_out)} of {made['rows']:,} would be left out, bad or outside the domain: more than the share "
            f"{float(share):g}, beyond which, and beyond chance, a release is refused"
        )


def _notes(plan: Plan, made: Mapping[str, Any]) -> Iterator[str]:
    for kind in made.get("codes", []):
        if kind["kind"] == Wrong.OUTSIDE.name:
            yield f"{_rows(kind['rows'])}: the code of {kind['column']} is {kind['wrong']}: in no table by it"
    for measure, rows in made.get("beyond_references", {}).items():
        yield f"{_rows(rows)} beyond every reference of the budget in {measure}: no limit binds what they lose"
    if "rows" in made and not made["ids_compared"]:
        yield f"ids were not compared: {plan.dataset.record} is neither text nor whole numbers"
    if plan.dataset.duplicates == "trust" and any(each["rule"] == TWICE for each in made.get("rules", [])):
        yield "duplicates: trust counts each row of such an id as a record, and protects each by itself"


def _counted(each: Mapping[str, Any]) -> str:
    return f"{_many(each['count'], each['of'])}: {each['column']} {each['rule']}"


def _rows(count: int) -> str:
    return _many(count, "row")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _file_repairs(made: Mapping[str, Any]) -> Iterator[str]:
    for lines in made["files"][:1]:
        yield lines[0]
    for each in made.get("rules", []):
        if each["rule"] != BY_LISTS:
            column, rule = each["column"], each["rule"]
            yield OF_RULES.get(rule, f"correct {{column}} where it {rule}").format(column=column)
    for kind in made.get("codes", []):
        if kind["kind"] != Wrong.OUTSIDE.name:
            own = f"the vintage {kind['own_vintage']}"
            yield OF_CODES[Wrong[kind["kind"]]].format(column=kind["column"], own=own)


def _plan_repairs(made: Mapping[str, Any]) -> Iterator[str]:
    for column in made["columns"]:
        if column["nearest"]:
            yield f"{column['key']}: {column['nearest']}, if that is the column"
    for kind in made.get("codes", []):
        key = next(c["key"] for c in made["columns"] if c["column"] == kind["column"] and ".keys." in c["key"])
        for span in kind["vintages"]:
            year = f"a year of {span}, with the lists of that year"
            yield f"domain.vintage.{key.rpartition('.')[2]}: {year}, if the data are of that vintage"


# The run.

NUMBER = re.compile(r"[^A-Za-z]*[0-9][^A-Za-z]*")  # or a code: what a record has, and a header has not
FOLDER = "checks"  # of reports, beside the ledger's staging


@dataclass(frozen=True, kw_only=True)
class CheckJob(RecordedJob):
    """One check; `report`: the file to write (None: a new one in a private folder beside the ledger's staging)."""

    report: Path | None = None
    as_json: bool = False
    site_share: Fraction = SHARE  # of records that may be left out, where the plan states none


@dataclass(frozen=True)
class Outcome:
    """Where the report of a check lies, and whether it has mistakes; both for the enclave alone."""

    report: Path
    mistaken: bool


def check(job: CheckJob) -> Outcome:
    """Look at the microdata of a plan; write what was found to a new private file (mode 0600).

    The ledger records the check before any record is read, and names it in the dataset's next reservation. Raises
    StateError where the report's place is taken, or releases are published or staged there.
    """
    plan = job.plan
    job.log.about(release=plan.release)
    path = _report_path(job)
    files = source.find(job.microdata)
    prepared = prepared_for(job.microdata, plan) is not None
    spec = row_by_row(plan)
    keys = zip(spec.keys, plan.domain.dimensions, strict=True)
    judges = tuple(CodeJudge.of(key, each, plan.domain) for key, each in keys if isinstance(key, CodeColumn))
    with job.recorded(files, event=CHECKED), job.log.stage("check", "looking at the microdata"), contract_checked(plan):
        checked = _look(job, files, spec, judges, prepared)
    made = report(plan, judges, checked, left_out_test_of(plan, job.site_share).share)
    text = json.dumps(made, ensure_ascii=False, indent=2, allow_nan=False) + "\n" if job.as_json else text_of(made)
    with file_errors(f"{arg('report', path)}: it cannot be written (", "): give another file"):
        LocalPath(path).write_durably(text.encode())
    return Outcome(path, bool(made["findings"]))


def _report_path(job: CheckJob) -> Path:
    """Return the file of the report, whose folder is there, apart from all releases; StateError where it cannot be."""
    kind = "json" if job.as_json else "txt"
    folder = LocalPath(job.ledger.staging_root.parent / FOLDER)
    path = job.report or folder.path / f"{job.plan.release}-{uuid.uuid4().hex[:8]}.{kind}"
    require_outside(path, [default_out(job.plan), *release_folders(job.ledger)], arg("report"))
    if path.exists() or path.is_symlink():
        raise StateError(f"{arg('report', path)}: it exists already: give a new file")
    with file_errors(f"{arg('report', path)}: its folder cannot be made (", "): give another file"):
        if job.report is None:
            folder.make_private()
        else:
            LocalPath(path.parent).make_folder()
    return path


def _look(job: CheckJob, files: Source, spec: SumSpec, judges: tuple[CodeJudge, ...], prepared: bool) -> Checked:
    dataset = job.plan.dataset
    wrong = [error for error in mistakes(files, spec, dataset.record) if error is not None]
    columns = _columns(files, [*spec.columns, dataset.record])
    if wrong:
        return Checked(spec, columns, wrong, None, ids=False)
    of_ids = replace(spec, record=dataset.record)  # also where they are trusted
    ids = not prepared and not any(mistakes(files, of_ids, dataset.record))
    scan = of_ids if ids else replace(spec, record=None)
    return Checked(scan, columns, [], _scan(job, files, scan, judges, ids), ids)


def _columns(files: Source, needed: Sequence[str]) -> Sequence[str] | None:
    """Return the columns of the first file that has some; None where there is none.

    Where no file has one that is needed, those of a first line in which no number stands: others may be records.
    """
    for wanted in (needed, ()):
        for file in files.files:
            try:
                names = schema_of(file, files, wanted).names
            except (PlanError, OSError):
                continue
            if wanted or not any(map(NUMBER.fullmatch, names)):
                return names
    return None


def _scan(job: CheckJob, files: Source, spec: SumSpec, judges: tuple[CodeJudge, ...], ids: bool) -> Found:
    chunks = list(source.chunks(files))
    dataset, root = job.plan.dataset, LocalPath(job.ledger.staging_root)
    by_record = ByRecord(spec, bucket_count(chunks), job.plan.dataset.record) if ids else None
    look = LookAt(spec, judges, _references(job.plan, spec), by_record)
    merge = OneId(spec, "combine" if dataset.duplicates == "combine" else "reject")
    prepare_root(root)
    with scratch(root, job.plan.release, "check") as between:
        return Found.merged(grouped(job.engine.each, look, chunks, merge, between))


def _references(plan: Plan, spec: SumSpec) -> tuple[dict[str, int], ...]:
    """Return the size of each record of the budget's references in steps of each measure, rounded down."""
    steps = {measure.name: measure.step for measure in spec.measures}
    return tuple(
        {name: abs(value) // steps[name] for name, value in record.values.items() if name in steps}
        for limit in plan.budget
        for record in limit.at.records
    )
