"""What was made from what: the attempts of a release as OpenLineage run events, one JSON object a line.

Guarantee: an event is a function of the plan and of the ledger's entries, whose times
`prdp ledger admin export` tells too. Of the microdata it has the dataset's name alone: no location, digest, size, time
or count. What it says of the tables follows from the plan's public domain.

Source: OpenLineage 2-0-2 (RunEvent), its naming of datasets, and the facets schema 1-2-0, version 1-0-1 and
outputStatistics 1-0-2.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.base.errors import StateError, arg, file_errors
from pipeline.base.log import Log
from pipeline.ledger.entries import Entry
from pipeline.ledger.store import Ledger
from pipeline.operations.telemetry import Unsent, checked_url, is_url, send
from pipeline.plan.model import VALUES, Plan, Query
from pipeline.storage.paths import locate

SPEC = "https://openlineage.io/spec"
RUN_EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
NAMESPACE = "prdp"  # of releases as jobs, and of datasets by the names that the ledger knows
ENDS = {"destroyed": "FAIL", "rejected": "ABORT", "aborted": "ABORT", "settled": "COMPLETE"}


def run_events(plan: Plan, entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the events of the plan's attempts among a release's `entries`: START, and where it ended how it ended.

    An attempt starts when its draw is recorded. It is COMPLETE once its output is complete, FAIL if it was
    destroyed, ABORT if it was rejected or aborted. Attempts of another plan of the same name are left out.
    """
    live, ours, out = None, False, ""
    for entry in entries:
        if entry.event == "reserved":
            live, ours, out = None, entry.facts["digest"] == plan.digest, str(entry.facts["out"])
        elif entry.event == "drawn" and ours:
            live = str(entry.attempt)
            yield _event(plan, live, "START", entry.time)
        elif entry.event in ENDS and live is not None:
            made = _outputs(plan, out, live) if entry.event == "settled" else []
            yield _event(plan, live, ENDS[entry.event], entry.time, made)
            live = None


def append_new(events: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Append to a file of JSON lines those events that it does not hold yet; StateError where it cannot be written.

    A run has one event of each type at most. What is new is one write at the end of the file: the lines of writers at
    the same time do not mix.
    """
    unwritten = file_errors(f"{arg('lineage', target)}: cannot be written: ", "; name another file")
    with unwritten, target.open("a+b", buffering=0) as file:
        file.seek(0)
        held = file.readall()
        known = {_name(line) for line in held.splitlines()}
        lines = [json.dumps(event).encode() + b"\n" for event in events]
        new = b"".join(line for line in lines if _name(line) not in known)
        file.write(new if held.endswith(b"\n") or not held else b"\n" + new)
        os.fsync(file.fileno())


@contextmanager
def recorded_lineage(plan: Plan, ledger: Ledger, target: str | os.PathLike[str] | None, log: Log) -> Iterator[None]:
    """Append the release's lineage to the file `target`, if any, after the block and also after its errors.

    Where it is a URL all events of the release are sent there; what no server takes is told by a warning.
    """
    if target is None:
        yield
        return
    record = _sender(str(target), log) if is_url(str(target)) else partial(append_new, target=Path(target))
    record([])  # a file that cannot be written ends the run before anything is charged
    try:
        yield
    except Exception:
        with suppress(StateError):  # the release's own error is the one to report
            record(run_events(plan, ledger.entries(plan.release)))
        raise
    record(run_events(plan, ledger.entries(plan.release)))


def _sender(url: str, log: Log) -> Callable[[Iterable[Mapping[str, Any]]], None]:
    checked = checked_url(url, arg("lineage"), "/api/v1/lineage")

    def send_all(events: Iterable[Mapping[str, Any]]) -> None:
        try:
            for event in events:
                send(checked, json.dumps(event).encode(), "application/json")
        except Unsent as error:  # the next run sends all events of the release again, from the ledger
            log.warning(f"lineage: {error}; the release is not affected, and the same command sends it again")

    return send_all


def _name(line: bytes) -> tuple[Any, Any] | None:
    """Return what names an event, its run and its type; None of what is no event."""
    try:
        event = json.loads(line)
        return event["run"]["runId"], event["eventType"]
    except (ValueError, KeyError, TypeError):
        return None


def run_id(release: str, attempt: str) -> str:
    """Return the UUID of an attempt, made from its name (RFC 9562, version 5)."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"prdp:{release}/{attempt}"))


def _event(plan: Plan, attempt: str, kind: str, time: str, outputs: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    return {
        "eventType": kind,
        "eventTime": time,
        "run": {"runId": run_id(plan.release, attempt)},
        "job": {"namespace": NAMESPACE, "name": plan.release},
        "inputs": [{"namespace": NAMESPACE, "name": plan.dataset.name}],
        "outputs": list(outputs),
        "producer": _producer(),
        "schemaURL": RUN_EVENT,
    }


def _outputs(plan: Plan, out: str, attempt: str) -> list[dict[str, Any]]:
    tables = locate(out, what="the ledger's output location") / plan.release / attempt / "tables"
    return [
        {
            "namespace": tables.root,
            "name": (tables / query.name).key,
            "facets": {
                "schema": _facet("1-2-0", "SchemaDatasetFacet", fields=_fields(query)),
                "version": _facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=attempt),
            },
            "outputFacets": {
                "outputStatistics": _facet(
                    "1-0-2",
                    "OutputStatisticsOutputDatasetFacet",
                    rowCount=plan.domain.query_cells(query.by, query.where).size,
                )
            },
        }
        for query in plan.queries
    ]


def _fields(query: Query) -> list[dict[str, str]]:
    values = "int64" if query.integer and all(mechanism.additive for mechanism in query.mechanisms) else "double"
    types = {name: "double" if name == "standard_error" else values for name in VALUES}
    return [{"name": name, "type": kind} for name, kind in (dict.fromkeys(query.by, "string") | types).items()]


def _facet(number: str, kind: str, **facts: Any) -> dict[str, Any]:
    return {"_producer": _producer(), "_schemaURL": f"{SPEC}/facets/{number}/{kind}.json#/$defs/{kind}"} | facts


def _producer() -> str:
    return f"pkg:generic/prdp@{version('prdp')}"
