"""Metrics and traces of releases: readable to others' parsers, of failed runs too, and nothing of the microdata."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.operations import telemetry
from pipeline.operations.telemetry import Gauge, Run, Unsent, as_text, checked_url, gauges_of_run, reach, send
from tests.support.collector import Collector, collector
from tests.support.leaks import found
from tests.support.ledgers import ledger_file
from tests.support.tls import certificates
from tests.support.world import records, write_world

RELEASE = "small-release"
CANARIES = ("CANARY-KIWI", "58274913", "62948173")
STAGES = ["check", "reserve", "scan", "tables", "test", "draw", "stage", "complete", "publish", "settle"]


def microdata(count: int, employment: Any = 58274913) -> pa.Table:
    rows = records(count, seed=count).to_pylist()
    rows[7] |= {"establishment_id": "CANARY-KIWI", "employment": employment, "payroll": 62948173}
    return pa.Table.from_pylist(rows)


@pytest.fixture
def server() -> Iterator[Collector]:
    with collector() as running:
        yield running


def release(plan: Path, *options: str) -> int:
    return main(["release", str(plan), "--ledger", ledger_file(plan.parent / "state" / "ledger.sqlite"), *options])


def samples(*texts: str) -> list[Sample]:
    return [each for text in texts for family in text_string_to_metric_families(text) for each in family.samples]


def in_folder(folder: Path) -> list[Sample]:
    return samples(*(path.read_text() for path in sorted(folder.glob("*.prom"))))


def values(told: list[Sample], name: str, label: str) -> dict[str, float]:
    return {each.labels[label]: each.value for each in told if each.name == f"prdp_{name}"}


def but_times(told: list[Sample]) -> list[tuple[str, dict[str, str], float]]:
    facts = [(each.name, {k: v for k, v in each.labels.items() if k != "plan"}, each.value) for each in told]
    return [(name, labels, 0.0 if name.endswith("_seconds") else value) for name, labels, value in facts]


def spans_of(body: bytes) -> list[Any]:
    """The spans of a request in OTLP's JSON, whose names are in hexadecimal where other JSON has base64."""

    def mended(value: Any) -> Any:
        if isinstance(value, list):
            return [mended(each) for each in value]
        if not isinstance(value, dict):
            return value
        names = ("traceId", "spanId", "parentSpanId")
        return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in names else mended(v) for k, v in value.items()}

    (resource,) = ParseDict(mended(json.loads(body)), ExportTraceServiceRequest()).resource_spans
    assert resource.resource.attributes[0].value.string_value == "prdp"
    return list(resource.scope_spans[0].spans)


def test_a_release_writes_metrics_and_sends_a_trace(tmp_path: Path, server: Collector) -> None:
    plan, folder = write_world(tmp_path, microdata(100)), tmp_path / "prom"
    folder.mkdir()
    assert release(plan, "--metrics", str(folder), "--traces", server.url) == 0
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    told = in_folder(folder)
    assert values(told, "run_exit_code", "release") == {RELEASE: 0}
    assert list(values(told, "stage_seconds", "stage")) == STAGES
    assert sum(values(told, "stage_seconds", "stage").values()) <= values(told, "run_seconds", "plan")[str(plan)]
    assert values(told, "stage_failed", "stage") == {}
    assert values(told, "releases", "state") == {"settled": 1}
    at, whole, left = "employment=10, payroll=500", "budget_limit_rho", "budget_left_rho"
    assert values(told, whole, "at") == {at: 100}
    (shown,) = prdp.open_ledger(tmp_path / "state" / "ledger.sqlite").spent({"employment": 10, "payroll": 500})
    assert values(told, left, "at") == {at: pytest.approx(100 - shown["spent"])}

    (sent,) = server.received
    assert found(str(microdata(100).to_pylist()), CANARIES) == list(CANARIES)
    assert not found(str((told, sent)), CANARIES)
    assert (sent.method, sent.path, sent.kind) == ("POST", "/v1/traces", "application/json")
    root, *stages = spans_of(sent.body)
    assert list(dict.fromkeys(span.name for span in stages)) == STAGES
    assert {len(span.trace_id) for span in stages} == {16}
    assert {(span.trace_id, span.parent_span_id) for span in stages} == {(root.trace_id, root.span_id)}
    assert len({span.span_id for span in (root, *stages)}) == 1 + len(stages)
    assert {span.status.code for span in (root, *stages)} == {Status.STATUS_CODE_OK}
    times = [root.start_time_unix_nano, *(t for s in stages for t in (s.start_time_unix_nano, s.end_time_unix_nano))]
    assert [*times, root.end_time_unix_nano] == sorted([*times, root.end_time_unix_nano])
    facts = {each.key: each.value.string_value or each.value.int_value for each in root.attributes}
    assert facts.keys() == {"prdp.release", "prdp.attempt", "prdp.exit_code"}
    assert not any(span.attributes for span in stages)


def test_failed_runs_are_told_and_tell_nothing_of_the_microdata(tmp_path: Path, server: Collector) -> None:
    plan = write_world(tmp_path, microdata(100, employment=58274913.5))
    assert release(plan, "--metrics", server.url, "--traces", server.url) == 4
    of_run, of_ledger, trace = server.received
    told = samples(of_run.body.decode(), of_ledger.body.decode())
    assert values(told, "run_exit_code", "release") == {RELEASE: 4}
    assert values(told, "stage_failed", "stage") == {"scan": 1}
    assert {span.name for span in spans_of(trace.body) if span.status.code == Status.STATUS_CODE_ERROR} == {
        "prdp release",
        "scan",
    }
    assert not found("".join(str(each) for each in server.received), CANARIES)

    plan.write_text(plan.read_text().replace("queries:", "querries:"))  # a run of the same plan replaces the last
    assert release(plan, "--metrics", server.url) == 2
    wrong = server.received[-1]
    assert (wrong.method, wrong.path) == (of_run.method, of_run.path) == ("PUT", wrong.path)
    group = wrong.path.removeprefix("/metrics/job/prdp/group@base64/")
    assert base64.urlsafe_b64decode(group).decode().startswith("plan-")
    assert [each.value for each in samples(wrong.body.decode()) if each.name == "prdp_run_exit_code"] == [2]


def test_metrics_of_other_microdata_differ_in_times_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(name: str, count: int) -> list[Any]:
        plan, folder = write_world(tmp_path / name, microdata(count, employment=count)), tmp_path / name / "prom"
        folder.mkdir()
        assert release(plan, "--metrics", str(folder)) == 0
        assert not found("".join(path.read_text() for path in folder.iterdir()), CANARIES)
        return but_times(in_folder(folder))

    first = told("first", 50)
    assert first == told("other", 400)

    def counting(run: Run) -> Iterator[Gauge]:
        yield from gauges_of_run(run)
        yield Gauge("records", "the twin", 50, {})

    monkeypatch.setattr(telemetry, "gauges_of_run", counting)
    assert first != told("twin", 50)


def test_what_cannot_be_written_or_sent_is_told_and_ends_nothing(
    tmp_path: Path, server: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, server.answer = write_world(tmp_path, microdata(50)), 503
    assert release(plan, "--metrics", str(tmp_path / "none"), "--traces", server.url, "--lineage", server.url) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    for line, part in zip(told, ("lineage: http", "metrics: ", "traces: http"), strict=True):
        assert part in line
        assert "the release is not affected" in line
    assert "it answered 503" in told[0]
    assert "none cannot be written: No such file or directory" in told[1]


def test_a_site_names_the_places_and_health_writes_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Collector
) -> None:
    plan = write_world(tmp_path, microdata(50))
    (tmp_path / "prom").mkdir()
    (tmp_path / "site.yaml").write_text(f"metrics: prom\ntraces: {server.url}\nlineage: {server.url}\n")
    monkeypatch.setenv("PRDP_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setattr("pipeline.release.installation.FILE", tmp_path / "absent.yaml")
    ledger = prdp.create_ledger(tmp_path / "state" / "ledger.sqlite")
    prdp.load_plan(plan).release(ledger=ledger, hold=True, workers=1)
    assert [each.path for each in server.received] == ["/api/v1/lineage", "/v1/traces"]
    assert ledger.health(longest_held=1e-9, least_free=1e-6)["well"] is False
    told = in_folder(tmp_path / "prom")
    assert values(told, "release_draws", "state") == {"held": 1}
    assert values(told, "health_findings", "check")["releases"] == 1
    assert values(told, "health_findings", "check")["draws"] == 0
    assert ledger.health(metrics=tmp_path / "none", least_free=1e-6)["findings"][-1]["check"] == "metrics"


@pytest.mark.parametrize("option", ["--metrics", "--traces", "--lineage"])
@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "https://ann:secret@localhost/x",
        "http://localhost.example.org/",
        "https://",
        "http:x",
        "ftp://localhost/x",
    ],
)
def test_an_unsafe_url_is_refused_before_anything_is_charged(
    tmp_path: Path, option: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_world(tmp_path, None)
    assert release(plan, option, url, "--data", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert f"error: {option} {url.replace('ann:secret@', '')}: " in told
    assert "secret" not in told
    assert not prdp.open_ledger(tmp_path / "state" / "ledger.sqlite").entries()


def test_it_is_sent_to_one_server_and_over_trusted_tls_alone(
    tmp_path: Path, server: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no proxy comes between
    send(server.url, b"1", "text/plain")
    server.answer, server.location = 307, f"{server.url}/elsewhere"
    with pytest.raises(Unsent, match="it answered 307"):
        send(server.url, b"2", "text/plain")
    assert [each.body for each in server.received] == [b"1", b"2"]
    with pytest.raises(Unsent, match="Connection refused"):
        send("http://127.0.0.1:1", b"3", "text/plain")
    with pytest.raises(Unsent, match=r"\[SSL"):  # it speaks no TLS
        reach(server.url.replace("http:", "https:"))
    for name, pem in zip(("root", "leaf", "key"), certificates("localhost"), strict=True):
        (tmp_path / name).write_bytes(pem)
    with collector((tmp_path / "leaf", tmp_path / "key")) as secure:
        with pytest.raises(Unsent, match="unable to get local issuer certificate"):
            send(secure.url, b"4", "text/plain")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "root"))
        send(secure.url, b"5", "text/plain")
        with pytest.raises(Unsent, match="not valid for"):  # the certificate is of another name
            send(secure.url.replace("localhost", "127.0.0.1"), b"6", "text/plain")
        assert [each.body for each in secure.received] == [b"5"]


def test_a_path_is_put_where_a_url_has_none() -> None:
    assert (
        checked_url("https://host:1", "x", "/v1") == checked_url("https://host:1/", "x", "/v1") == "https://host:1/v1"
    )
    assert checked_url("https://host/own", "x", "/v1") == "https://host/own"
    with pytest.raises(PlanError, match="x HTTP://host: a server beyond"):
        checked_url("HTTP://host", "x")


def test_labels_are_escaped_as_a_parser_reads_them() -> None:
    odd = 'a "b" \\ c\nd \\n'
    (sample,) = samples(as_text([Gauge("x", "help", 0.1, {"plan": odd, "release": None})]))
    assert (sample.name, sample.labels, sample.value) == ("prdp_x", {"plan": odd}, 0.1)
