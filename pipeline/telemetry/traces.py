"""A run as a trace of OpenTelemetry: a span for the run, and one in it for each stage.

Source: OpenTelemetry Protocol, OTLP/HTTP: an ExportTraceServiceRequest in its JSON encoding.
"""

import json
import secrets
from importlib.metadata import version
from typing import Any

from pipeline.telemetry.run import Run, Stage
from pipeline.web import checked_url, send

INTERNAL, OK, ERROR = 1, 1, 2  # SpanKind and StatusCode of OTLP


def checked_collector(url: str) -> str:
    """Return the URL to which traces go, /v1/traces where it has no path; raises PlanError on an unsafe one."""
    return checked_url(url, "--traces", "/v1/traces")


def send_trace(url: str, run: Run) -> None:
    """Send a run's trace to a checked URL; raises Unsent where no collector takes it."""
    send(url, json.dumps(trace_of(run)).encode(), "application/json")


def trace_of(run: Run) -> dict[str, Any]:
    """Return a run as a request of OTLP, under new random names; release, attempt and exit code are the run's alone."""
    trace, root = secrets.token_hex(16), secrets.token_hex(8)
    facts = {"prdp.release": run.release, "prdp.attempt": run.attempt, "prdp.exit_code": run.exit_code}
    whole = Stage("prdp release", run.began, run.ended, run.exit_code != 0)
    spans = [{**_span(trace, root, whole), "attributes": _attributes(facts)}]
    spans += [{**_span(trace, secrets.token_hex(8), stage), "parentSpanId": root} for stage in run.stages]
    resource = {"attributes": _attributes({"service.name": "prdp", "service.version": version("prdp")})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "prdp"}, "spans": spans}]}]}


def _span(trace: str, name: str, stage: Stage) -> dict[str, Any]:
    times = {"startTimeUnixNano": _nanoseconds(stage.began), "endTimeUnixNano": _nanoseconds(stage.ended)}
    status = {"code": ERROR if stage.failed else OK}
    return {"traceId": trace, "spanId": name, "name": stage.name, "kind": INTERNAL, **times, "status": status}


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e9))


def _attributes(facts: dict[str, str | int | None]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in facts.items()
        if value is not None
    ]
