"""prdp release: release a plan's tables, or continue where an earlier run stopped."""

import argparse
from collections.abc import Sequence
from typing import Any

from jobs.arrow import do_without_pandas
from jobs.options import Parser, add_data, add_plan, add_run, run_options, values_set
from jobs.output import print_json, say
from pipeline.release.export import published_part
from pipeline.release.manifest import read_manifest
from pipeline.report.text import WIDTH
from pipeline.storage.uri import locate
from pipeline.telemetry.watch import watched
from prdp.plans import load_plan
from prdp.releases import Release

EXAMPLE = "prdp release plan.yaml --out releases --csv"
ROWS_SHOWN = 4


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    add_data(parser)
    parser.add_argument("--out", metavar="URI", help="where to publish (default: releases/ beside the plan)")
    parser.add_argument(
        "--staging", metavar="URI", help="where draws lie until they are published (default: beside the ledger)"
    )
    parser.add_argument(
        "--hold", action="store_true", help="publish nothing before an officer approves (prdp ledger approve)"
    )
    parser.add_argument(
        "--lineage",
        metavar="PLACE",
        help="append the release's inputs and outputs to a file, or send them to a URL, as OpenLineage events",
    )
    parser.add_argument(
        "--metrics",
        metavar="PLACE",
        help="write metrics for Prometheus to a folder, or to a push gateway; confidential",
    )
    parser.add_argument("--traces", metavar="URL", help="send a trace to a collector of OpenTelemetry; confidential")
    parser.add_argument("--csv", action="store_true", help="write every table as CSV too")
    add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Release or hold, then print where the tables are, and a few rows of published ones."""
    if arguments.engine != "spark":
        do_without_pandas()
    with watched(arguments.log, arguments.plan, arguments.metrics, arguments.traces):  # also a plan that is wrong
        released = load_plan(arguments.plan, set=values_set(arguments)).release(
            arguments.data,
            out=arguments.out,
            staging=arguments.staging,
            hold=arguments.hold,
            csv=arguments.csv,
            lineage=arguments.lineage,
            **run_options(arguments),
        )
    if arguments.json:
        print_json(released.to_json())
    else:
        _show(released)


def _show(released: Release) -> None:
    say(f"release {released.name}, attempt {released.attempt}: {released.state}")
    if released.already:
        print(f"it was {'held' if released.state == 'held' else 'published'} already: nothing was read or drawn")
    for line in released.not_done:
        say(line)
    if released.state == "held":
        say("nothing is published yet: an officer looks at the staged tables, which are confidential, and runs")
        print(f"prdp ledger approve {released.name}, or\nprdp ledger reject {released.name} --reason TEXT")
    else:
        print(f"manifest {released.path}/release.json")
    if released.page is not None:
        print(f"{'staged page' if released.state == 'held' else 'page'} {released.page}")
    published = {} if released.state == "held" else _first_files(released)
    for query, table in released.tables.items():
        print(f"\n{query}: {table['rows']:,} rows in {table['path']}")
        if query in published:
            rows = next(published_part(locate(released.path), published[query]).iter_batches(ROWS_SHOWN))
            _show_rows(rows)


def _first_files(released: Release) -> dict[str, dict[str, Any]]:
    """Return the first file of each table, as the manifest tells it."""
    tables = read_manifest(locate(released.path))["tables"]
    return {table["query"]: next(f for f in table["files"] if f["path"].endswith(".parquet")) for table in tables}


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
        print(*row)


def _shown(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"
