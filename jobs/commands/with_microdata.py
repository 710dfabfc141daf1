"""The commands on microdata: prepare, check, release and diagnose."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobs.commands import print_json, put, say, tell
from jobs.options import Act, called
from pipeline.base.errors import MicrodataError
from pipeline.base.plain import WIDTH
from prdp.plans import Plan
from prdp.runs import watched

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


ACTS = {
    "prepare": Act("", "prdp.microdata.prepare", "prepare raw.csv --plan plan.yaml --out prepared", _show_prepared),
    "check": Act("", Plan.check_microdata, "check plan.yaml --report confidential/cbp-2023.txt", run=_check),
    "release": Act("", Plan.release, "release plan.yaml --out releases --csv", run=_release),
    "diagnose": Act("", "prdp.microdata.diagnose", "diagnose plan.yaml --out confidential/cbp-2023", _show_diagnosed),
}
