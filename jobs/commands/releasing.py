"""The commands of a release, on microdata, and those after it, which read published files alone."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Any

from jobs.commands import print_columns, print_json, put, say, tell
from jobs.options import Act, Parser, add_call, called
from pipeline.base.errors import MicrodataError, PlanError
from pipeline.base.plain import WIDTH

if TYPE_CHECKING:
    from prdp.releases import Release

ROWS_SHOWN = 4


def _show_prepared(prepared: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print where they are, and how they are released; their number stays in the confidential manifest."""
    put(f"prepared microdata of {prepared['dataset']}, confidential\nmanifest {prepared['manifest']}")
    if prepared["registered"] in (None, prepared["out"]):
        values = [word for value in arguments.set for word in ("--set", value)]
        words = shlex.join([arguments.plan, *values, "--data", prepared["out"]])
        tell(f"release from them:\nprdp release {words}")
    else:
        say(
            f"the ledger registers the dataset with {prepared['registered']}, and releases it from there alone: "
            f"before its first release an officer can register {prepared['out']} instead:"
        )
        tell(f"prdp ledger correct {prepared['dataset']} --budget FILE")


def _check(arguments: argparse.Namespace) -> None:
    """Check the microdata, then say where the report is; exit code 4 where it tells of something."""
    from prdp.plans import Plan  # noqa: PLC0415 — prdp verify does without

    made = called(Plan.check_microdata, arguments, as_json=arguments.json)
    mistaken = made.pop("found")
    if arguments.json:
        print_json(made)
    if mistaken:
        raise MicrodataError(f"the check found something: read its report {made['report']}, which is confidential")
    if not arguments.json:
        put(f"the check of the microdata of {made['dataset']} found nothing\nreport {made['report']}, confidential")


def _release(arguments: argparse.Namespace) -> None:
    """Release or hold, then print where the tables are, and a few rows of published ones."""
    from prdp.plans import Plan  # noqa: PLC0415 — likewise
    from prdp.runs import watched  # noqa: PLC0415 — likewise

    if arguments.engine != "spark":
        do_without_pandas()
    with watched(arguments.log, arguments.plan, arguments.metrics, arguments.traces):  # also a plan that is wrong
        released = called(Plan.release, arguments)
    if arguments.json:
        print_json(released.to_json())
    else:
        _show(released)


def _show(released: "Release") -> None:
    say(f"release {released.name}, attempt {released.attempt}: {released.state}")
    if released.already:
        put(f"it was {'held' if released.state == 'held' else 'published'} already: nothing was read or drawn")
    for line in released.not_done:
        say(line)
    if released.state == "held":
        say("nothing is published yet: an officer looks at the staged tables, which are confidential, and runs")
        tell(f"prdp ledger approve {released.name}\nor\nprdp ledger reject {released.name} --reason TEXT")
    else:
        put(f"manifest {released.path}/release.json")
    if released.page is not None:
        put(f"{'staged page' if released.state == 'held' else 'page'} {released.page}")
    published = released.first_rows(ROWS_SHOWN)
    for query, table in released.tables.items():
        put(f"\n{query}: {table['rows']:,} rows in {table['path']}")
        if query in published:
            _show_rows(published[query])


def _show_rows(rows: Any) -> None:
    """Print a batch of rows in columns that end at the right, as many beside each other as a terminal has room for."""
    beside: list[list[str]] = []
    for name, values in zip(rows.schema.names, rows, strict=True):
        column = [name, *map(_shown, values.to_pylist())]
        width = max(map(len, column))
        if beside and sum(len(each[0]) + 1 for each in beside) + width > WIDTH:
            _print_beside(beside)
            beside = []
        beside.append([text.rjust(width) for text in column])
    _print_beside(beside)


def _print_beside(columns: Sequence[Sequence[str]]) -> None:
    for row in zip(*columns, strict=True):
        put(*row)


def _shown(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"


class _Absent:
    """Finds no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def do_without_pandas() -> None:
    """Have Arrow not load pandas at its first array, where it looks once whether it is there to know its objects.

    Arrays are the same without. Whoever asks Arrow for a frame, or imports pandas, has it afterwards as ever.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa  # noqa: PLC0415 — `prepare --help` does without

    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)


def _show_diagnosed(made: dict[str, Any], _: object) -> None:
    put(f"confidential diagnostics of {made['release']}\nreport {made['report']}\ndata   {made['diagnostics']}")


AT_EXPECTED = "at the expected totals"  # which errors these are, of noise that grows with totals


def _show_verified(verified: Any, arguments: argparse.Namespace) -> None:
    from prdp.verified import has_front_page, signature_note  # noqa: PLC0415 — others do without

    facts = asdict(verified)
    if arguments.json:
        print_json(facts)
        return
    note = signature_note(arguments.path, arguments.key)
    if "attempt" in facts:
        say(f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}", *note)
        if has_front_page(arguments.path):
            say("index.html, the front page, is not in the manifest and was not checked")
        say("ledger head, to be compared with the one that the publisher names:", verified.ledger_head)
    elif "sums" in facts:
        say(f"{', '.join(verified.releases)}, reconciled: {verified.files} files match their manifest", *note)
        say(f"{verified.sums:,} cells are the sums of finer ones, to the last unit")
    else:
        say(f"{verified.title}, of {', '.join(verified.releases)}: {verified.files} files match their manifest", *note)


def _declare_reconcile(parser: Parser) -> None:
    add_call(parser, "prdp.reconciled.reconcile")
    add_call(parser, "prdp.reconciled.Reconciled.sum")


def _reconcile(arguments: argparse.Namespace) -> None:
    """Write the tables, or the sums alone, then print what was made."""
    from prdp.reconciled import reconcile  # noqa: PLC0415 — likewise

    engine = {name: getattr(arguments, name) for name in ("engine", "scheduler", "workers", "master")}
    if arguments.out is None:
        if not arguments.where:
            raise PlanError("prdp reconcile: give --out DIR for the tables, --sum CELLS for a sum of cells, or both")
        if arguments.sign:
            raise PlanError("prdp reconcile: --sign signs the tables' manifest: give --out DIR")
        if any(value is not None for value in engine.values()):
            raise PlanError("prdp reconcile: engines make tables: give --out DIR, or leave the engine's options out")
    reconciled = called(reconcile, arguments, out=None, sign=False, **dict.fromkeys(engine))
    sums = [reconciled.sum(text, arguments.of) for text in arguments.where or ()]  # what is wrong in them comes first
    if arguments.out is not None:
        written = {"csv": arguments.csv, "sign": arguments.sign, "command_log": arguments.log}
        reconciled = reconciled.write(arguments.out, **written, **engine)
    if arguments.json:
        print_json(dict(reconciled.facts) | {"sums": [each.to_json() for each in sums]})
        return
    if arguments.out is not None:
        _print_reconciled(reconciled.facts, arguments.out)
    for each in sums:
        put(_sum_text(each, 0.95 if arguments.interval is None else arguments.interval))


def _print_reconciled(facts: Mapping[str, Any], out: str) -> None:
    for release in facts["releases"]:
        put(f"release {release['release']}, attempt {release['attempt']}: its files match the manifest")
    rows = [("table", "cells", "standard errors", "weights")]
    unweighted = {name: why for group in facts["groups"] for name, why in group["unweighted"].items()}
    for name, table in facts["tables"].items():
        errors = table["errors"] + (f", {AT_EXPECTED}" if table["at_expected_totals"] else "")
        rows.append((name, f"{table['rows']:,}", errors, f"none: {unweighted[name]}" if name in unweighted else ""))
    print_columns(rows)
    for name, why in facts["not_reconciled"].items():
        put(f"{name}: not reconciled: {why}")
    for name, why in facts["apart"].items():
        put(f"{name}: {why}")
    put(f"{len(facts['tables'])} tables that add up in {out}")


def _sum_text(sum_: Any, interval: float) -> str:
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in sum_.where.items()) or "all cells"
    without = f"; records without a listed code in {', '.join(sum_.keys)} are in no table" if sum_.keys else ""
    where = f" {AT_EXPECTED}" if sum_.at_expected_totals else ""
    return (
        f"{sum_.of}, {cells}: {sum_.value:,.3f}, standard error {sum_.standard_error:,.3f}{where}, "
        f"{100 * interval:g} % between {sum_.lower:,.3f} and {sum_.upper:,.3f}{without}"
    )


def _declare_derive(parser: Parser) -> None:
    add_call(parser, "prdp.reconciled.derive")
    add_call(parser, "prdp.reconciled.derive_table", only=("out", "csv"))
    parser.epilog = (
        f"{parser.epilog}\n\nWith --out the statistic is one of each cell; MEASURE is then the name of a table."
    )


def _derive(arguments: argparse.Namespace) -> None:
    """Print the statistic, or write that of every cell."""
    from prdp.reconciled import derive, derive_table  # noqa: PLC0415 — likewise

    if arguments.out is None:
        if arguments.csv:
            raise PlanError("prdp derive --csv: it goes with --out")
        statistics = called(derive, arguments)
        if arguments.json:
            print_json([each.to_json() for each in statistics])
            return
        for each in statistics:
            _print_derived(each)
        return
    if arguments.where or arguments.inside or arguments.mean:
        raise PlanError("prdp derive --out: its tables have all cells; --where, --inside and --mean go without it")
    facts = called(derive_table, arguments)
    if arguments.json:
        print_json(facts)
        return
    put(f"{facts['table']}: {facts['statistic']} of {facts['rows']:,} cells in {arguments.out}")
    for note in facts["notes"]:
        put(f"  {note}")


def _print_derived(derived: Any) -> None:
    filters = {level: codes for total in derived.totals.values() for level, codes in total.where.items()}
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in filters.items()) or "all cells"
    error = "" if isnan(derived.standard_error) else f", standard error {derived.standard_error:,.6g}"
    ends = f", {100 * derived.interval:g} % between {derived.lower:,.6g} and {derived.upper:,.6g}"
    put(f"{derived.statistic}, {cells}: {derived.value:,.6g}{error}{'' if isnan(derived.lower) else ends}")
    for note in derived.notes:
        put(f"  {note}")


def _show_product(made: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print what the product holds."""
    for release in made["releases"]:
        what, whose = ("reconciled tables of the release", "their") if "reconciled" in made else ("release", "its")
        put(f"{what} {release['release']}, attempt {release['attempt']}: {whose} files match the manifest")
    size = sum(file["bytes"] for file in made["files"])
    put(f"product {made['product']}: {len(made['files'])} files, {size:,} bytes in {arguments.out}")
    for file in made["left_out"]:
        put(f"left out: {file}, since no folder has its tables")


def _show_exported(made: dict[str, Any], _: object) -> None:
    """Print where the tables, or the site, are."""
    if "format" not in made:
        _show_site(made)
        return
    if "release" in made:
        put(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    else:
        put(f"reconciled tables of {', '.join(made['releases'])}: their files match the manifest")
    for query, table in made["tables"].items():
        put(f"{query}: {table['rows']:,} rows in {table['path']}")


def _show_site(made: dict[str, Any]) -> None:
    put(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    shown = f", {len(made['reconciled'])} of them with reconciled figures" if made["reconciled"] else ""
    shown += f", {len(made['product'])} files of the product" if made["product"] else ""
    put(f"site of {len(made['tables'])} tables{shown}: open {made['out']}/index.html")


ACTS = {
    "prepare": Act("", "prdp.microdata.prepare", "prepare raw.csv --plan plan.yaml --out prepared", _show_prepared),
    "check": Act(
        "", "prdp.plans.Plan.check_microdata", "check plan.yaml --report confidential/cbp-2023.txt", run=_check
    ),
    "release": Act("", "prdp.plans.Plan.release", "release plan.yaml --out releases --csv", run=_release),
    "diagnose": Act("", "prdp.microdata.diagnose", "diagnose plan.yaml --out confidential/cbp-2023", _show_diagnosed),
    "verify": Act("", "prdp.verified.verify", "verify releases/cbp-2023-county", _show_verified, prints_json=True),
    "reconcile": Act(
        "",
        example=(
            'reconcile releases/cbp-2023-county --out reconciled --sum "naics2=31-33, state in 06,48" --of employment'
        ),
        declare=_declare_reconcile,
        run=_reconcile,
    ),
    "derive": Act(
        "",
        example='derive releases/cbp-2023 --ratio payroll/employment --where "naics2=31-33, state=06"',
        declare=_declare_derive,
        run=_derive,
    ),
    "product": Act(
        "", "prdp.releases.product", "product reconciled releases/cbp-2023 --out cbp23 --year 2023", _show_product
    ),
    "export": Act(
        "", "prdp.releases.export_tables", "export releases/cbp-2023-county --to csv --out tables", _show_exported
    ),
}
