"""--lineage: what was made from what, in OpenLineage's form, from the ledger and the plan alone."""

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from referencing import Registry, Resource

from jobs.cli import main
from pipeline.operations.lineage import RUN_EVENT, append_new, run_events, run_id
from pipeline.plan.load import load_plan
from pipeline.release.attempts import give_up
from pipeline.release.officers import reject
from pipeline.storage.objects import StorePath
from tests.support.collector import collector
from tests.support.leaks import found
from tests.support.ledgers import ledger_file
from tests.support.submit import Place, submit
from tests.support.world import MEASURES, QUERIES, records, write_world

RELEASE = "small-release"
FOLDER = Path(__file__).parents[1] / "support" / "openlineage"  # the published schemas
SCHEMAS = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema))
    for schema in map(json.loads, (f.read_text() for f in FOLDER.glob("*.json")))
)


def valid(event: Mapping[str, Any]) -> bool:
    """Whether an event has no members but a RunEvent's, and is, with its facets, what OpenLineage's schemas ask for."""
    named = [*event["inputs"], *event["outputs"]]
    facets = [facet for one in named for part in ("facets", "outputFacets") for facet in one.get(part, {}).values()]
    known = {"eventType", "eventTime", "run", "job", "inputs", "outputs", "producer", "schemaURL"}
    return event.keys() <= known and all(
        schema_of(part, at).is_valid(part)
        for part, at in ((each, each.get("_schemaURL", RUN_EVENT)) for each in [event, *facets])
    )


def schema_of(part: Mapping[str, Any], at: str) -> Any:
    from jsonschema import Draft202012Validator, FormatChecker  # take a second, and every process imports this module

    formats = FormatChecker(["uuid"])
    formats.checks("uri")(lambda text: re.fullmatch(r"[a-z][a-z0-9+.-]*:\S+", text))
    formats.checks("date-time", ValueError)(lambda text: datetime.fromisoformat(text).tzinfo)
    return Draft202012Validator({"$ref": at}, registry=SCHEMAS, format_checker=formats)


BREAKS: list[Callable[[Any], object]] = [
    lambda event: event.update(eventType="DONE"),
    lambda event: event.update(eventTime="2026-01-01T00:00:00"),
    lambda event: event["run"].update(runId=event["run"]["runId"].replace("-", "")),
    lambda event: event.update(producer="prdp"),
    lambda event: event["inputs"][0].pop("name"),
    lambda event: event["outputs"][0]["facets"]["version"].update(_producer="prdp"),
    lambda event: event["outputs"][0]["facets"]["version"].pop("datasetVersion"),
    lambda event: event["outputs"][0]["facets"]["schema"]["fields"][0].pop("name"),
    lambda event: event["outputs"][0]["outputFacets"]["outputStatistics"].update(rowCount="3"),
    lambda event: event.update(microdata={}),
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    queries = [
        *QUERIES,
        {"name": "cents", "sum": "payroll", "by": ["naics2", "state"], "mechanism": {"kind": "laplace", "sigma": 10}},
    ]
    measures = MEASURES | {"payroll": {"column": "payroll", "type": "decimal", "step": 1}}
    plan = write_world(tmp_path, records(1237), queries=queries, dataset={"measures": measures})
    return Place(plan, tmp_path)


def release(place: Place, *options: str, to: str | None = None) -> int:
    lineage = to or str(place.folder / "lineage")
    given = ["--ledger", ledger_file(place.ledger_path), "--out", str(place.out), "--lineage", lineage]
    return main(["release", str(place.plan), *given, *options])


def events(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.folder / "lineage").read_text().splitlines()]


def attempts(place: Place) -> list[str]:
    return [str(entry.attempt) for entry in place.ledger().entries(RELEASE) if entry.event == "drawn"]


def test_a_release_starts_and_completes(place: Place) -> None:
    assert release(place) == 0
    start, complete = events(place)
    assert valid(start)
    assert valid(complete)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    (attempt,) = attempts(place)
    assert start["run"] == complete["run"] == {"runId": run_id(RELEASE, attempt)}
    assert start["inputs"] == complete["inputs"] == [{"namespace": "prdp", "name": "small-world"}]
    assert complete["job"] == {"namespace": "prdp", "name": RELEASE}
    assert len(complete["outputs"]) == 4
    for table in complete["outputs"]:
        assert table["namespace"] == "file"
        read = pq.read_table(table["name"])
        assert table["outputFacets"]["outputStatistics"]["rowCount"] == len(read)
        told = [(field["name"], field["type"]) for field in table["facets"]["schema"]["fields"]]
        assert told == [(field.name, str(field.type)) for field in read.schema]
        assert table["facets"]["version"]["datasetVersion"] == attempt


def test_the_check_of_the_form_finds_what_breaks_it(place: Place) -> None:
    submit(place)
    *_, event = run_events(load_plan(place.plan), place.ledger().entries(RELEASE))
    assert valid(event)
    for change in BREAKS:
        broken = deepcopy(event)
        change(broken)
        assert not valid(broken)


def test_it_is_written_once_and_again_where_the_file_is_gone(place: Place) -> None:
    assert release(place) == 0
    written = (place.folder / "lineage").read_bytes()
    assert release(place) == 0
    assert (place.folder / "lineage").read_bytes() == written
    (place.folder / "lineage").write_bytes(b'[1]\n{"run"')  # a collector's own file, its last line cut
    assert release(place) == 0
    assert (place.folder / "lineage").read_bytes() == b'[1]\n{"run"\n' + written


def test_nothing_of_the_microdata_is_told(place: Place) -> None:
    submit(place)
    told = "".join(json.dumps(event) for event in run_events(load_plan(place.plan), place.ledger().entries(RELEASE)))
    (drawn,) = (entry for entry in place.ledger().entries(RELEASE) if entry.event == "drawn")
    canaries = [str(place.folder / "microdata"), str(drawn.facts["pin"]), "1237", "establishment_id", "part-0"]
    assert not found(told, canaries)
    assert found(told + str(drawn.facts), canaries)  # the twin: an event with the ledger's facts


def test_a_destroyed_attempt_failed_and_the_next_one_completes(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr("pipeline.engines.writers.Csv.write", fail)
        assert release(place, "--csv") == 5
    assert [event["eventType"] for event in events(place)] == ["START", "FAIL"]
    assert release(place) == 0
    first, second = attempts(place)
    assert [(event["eventType"], event["run"]["runId"]) for event in events(place)] == [
        ("START", run_id(RELEASE, first)),
        ("FAIL", run_id(RELEASE, first)),
        ("START", run_id(RELEASE, second)),
        ("COMPLETE", run_id(RELEASE, second)),
    ]
    assert all(map(valid, events(place)))
    assert [bool(event["outputs"]) for event in events(place)] == [False, False, False, True]


def test_a_server_is_sent_all_events_also_of_failed_attempts_and_what_it_missed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    with collector() as server, monkeypatch.context() as broken:  # as Marquez takes events, one a request
        broken.setattr("pipeline.engines.writers.Csv.write", fail)
        assert release(place, "--csv", to=server.url) == 5
        assert [json.loads(each.body)["eventType"] for each in server.received] == ["START", "FAIL"]
        server.answer = 500
        broken.undo()
        assert release(place, to=server.url) == 0
        assert "the same command sends it again" in capsys.readouterr().err
        server.answer = 201
        server.received.clear()
        assert release(place, to=server.url) == 0
        sent = [json.loads(each.body) for each in server.received]
        assert {each[:3] for each in server.received} == {("POST", "/api/v1/lineage", "application/json")}
    assert [event["eventType"] for event in sent] == ["START", "FAIL", "START", "COMPLETE"]
    assert all(map(valid, sent))
    assert sent == list(run_events(load_plan(place.plan), place.ledger().entries(RELEASE)))


def test_what_is_refused_before_a_draw_is_no_event(tmp_path: Path) -> None:
    bad = records(20).set_column(3, "employment", [[0.5] * 20])
    place = Place(write_world(tmp_path, bad), tmp_path)
    assert release(place) == 4
    assert events(place) == []


@pytest.mark.parametrize("act", ["reject", "abort"])
def test_what_officers_end_is_aborted(place: Place, act: str) -> None:
    assert release(place, "--hold") == 0
    assert [event["eventType"] for event in events(place)] == ["START"]
    if act == "reject":
        reject(place.ledger(), RELEASE, "an officer's reason")
    else:
        give_up(place.ledger(), RELEASE)
    assert release(place) == 5
    assert [event["eventType"] for event in events(place)] == ["START", "ABORT"]


def test_attempts_of_another_plan_of_that_name_are_left_out(place: Place, tmp_path: Path) -> None:
    submit(place)
    other = load_plan(write_world(tmp_path / "other", None, interval=0.9))
    assert list(run_events(other, place.ledger().entries(RELEASE))) == []


def test_a_file_that_cannot_be_written_is_told_before_anything_is_charged(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (place.folder / "lineage").mkdir()
    assert release(place) == 5
    assert "--lineage" in capsys.readouterr().err
    assert place.ledger().state(RELEASE) is None


def test_tables_in_a_store_are_named_by_their_bucket(place: Place, tmp_path: Path) -> None:
    submit(place)
    entries = place.ledger().entries(RELEASE)
    moved = [
        entry if entry.event != "reserved" else _reserved_at(entry, str(StorePath("s3", "public", "releases")))
        for entry in entries
    ]
    *_, complete = run_events(load_plan(place.plan), moved)
    (attempt,) = attempts(place)
    first = complete["outputs"][0]
    assert (first["namespace"], first["name"]) == ("s3://public", f"releases/{RELEASE}/{attempt}/tables/establishments")
    append_new([complete], tmp_path / "events")
    assert valid(json.loads((tmp_path / "events").read_text()))


def _reserved_at(entry: Any, out: str) -> Any:
    return replace(entry, payload=json.dumps(dict(entry.facts) | {"out": out}))
