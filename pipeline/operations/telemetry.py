"""A run as an operator's tools see it, told when it has ended, however it ended: metrics, and a trace.

Guarantee: nothing of the microdata but times, and whether and where a run failed: no value of a record, no count, no
message. What is told of releases and budgets is the ledger's. All of it is confidential (docs/monitoring.md).

Metrics go to a folder that node_exporter's textfile collector reads, or to a push gateway. A trace has a span for the
run, and one in it for each stage. Sources: Prometheus, Exposition formats, text format version 0.0.4; Pushgateway, API;
OpenTelemetry Protocol, OTLP/HTTP: an ExportTraceServiceRequest in its JSON encoding.

What is sent to a site's collectors is encrypted beyond this machine, goes out in one try, and nowhere else: no proxy
stands between prdp and an address of this machine, and no redirection is followed. TLS trusts the machine's
authorities, or those of the file that SSL_CERT_FILE names.
"""

import base64
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pipeline.base.errors import PlanError, PrdpError, arg, in_a_line
from pipeline.base.log import Log
from pipeline.ledger.store import Ledger
from pipeline.release.installation import site
from pipeline.storage.paths import PUBLIC_MARKS, require_not_in


@dataclass(frozen=True)
class Stage:
    """A stage of a run by the name that its log has; `began` and `ended` in seconds since 1970 (UTC)."""

    name: str
    began: float
    ended: float
    failed: bool


@dataclass(frozen=True)
class Run:
    """A run of `prdp release`: of which plan file, and, as far as it came, of which release and attempt."""

    plan: str
    release: str | None
    attempt: str | None
    began: float
    ended: float
    exit_code: int
    stages: tuple[Stage, ...]


KIND = "text/plain; version=0.0.4; charset=utf-8"
MODE = 0o640  # the group, by which node_exporter's own user reads the folder
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})  # of a label's value
UNDER_WAY = ("reserved", "drawn", "held", "published")
INTERNAL, OK, ERROR = 1, 1, 2  # SpanKind and StatusCode of OTLP


@dataclass(frozen=True)
class Gauge:
    """One sample: a metric's name without its prefix, what it is, its value and its labels; None: left out."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str | None]


def gauges_of_run(run: Run) -> Iterator[Gauge]:
    """Yield how a run ended, and how long it and its stages took; stages of one name are added up."""
    of = {"plan": run.plan, "release": run.release}
    yield Gauge("run_exit_code", "Exit code of the last run; 4 is confidential.", run.exit_code, of)
    yield Gauge("run_ended_timestamp_seconds", "When the last run ended, since 1970.", round(run.ended, 3), of)
    yield Gauge("run_seconds", "How long the last run took.", round(run.ended - run.began, 3), of)
    took: defaultdict[str, float] = defaultdict(float)
    for stage in run.stages:
        took[stage.name] += stage.ended - stage.began
    for name, seconds in took.items():
        yield Gauge("stage_seconds", "How long a stage of the last run took.", round(seconds, 3), of | {"stage": name})
    for stage in run.stages:
        if stage.failed:
            yield Gauge("stage_failed", "The stage in which the last run failed.", 1, of | {"stage": stage.name})


def gauges_of_ledger(ledger: Ledger) -> Iterator[Gauge]:
    """Yield the releases of each dataset by state, draws of those under way, and what is left by each limit (ρ)."""
    rows, accounts = ledger.overview()
    for (dataset, state), number in Counter((dataset, str(row.status)) for dataset, row in rows).items():
        yield Gauge("releases", "Releases by state.", number, {"dataset": dataset, "state": state})
    for dataset, row in rows:
        if row.status in UNDER_WAY:
            of = {"dataset": dataset, "release": row.release, "state": str(row.status)}
            yield Gauge("release_draws", "Draws of a release that is under way.", row.draws, of)
    limits = [(account.name, under.to_json()) for account in accounts for under in account.limits]
    left = ("budget_left_rho", "left", "What is left by a limit, in rho, rounded down.")
    for metric, key, words in (("budget_limit_rho", "rho", "A limit, in rho."), left):
        for name, limit in limits:
            yield Gauge(metric, words, float(limit[key]), {"dataset": name, "at": str(limit["at"])})


def as_text(gauges: Iterable[Gauge]) -> str:
    """Return metrics in Prometheus's text format; those of one name stand together."""
    by_name: defaultdict[str, list[Gauge]] = defaultdict(list)
    for gauge in gauges:
        by_name[f"prdp_{gauge.name}"].append(gauge)
    lines = []
    for name, samples in by_name.items():
        lines += [f"# HELP {name} {samples[0].help}", f"# TYPE {name} gauge"]
        for sample in samples:
            labels = ",".join(
                f'{key}="{text.translate(ESCAPES)}"' for key, text in sample.labels.items() if text is not None
            )
            lines.append(f"{name}{{{labels}}} {float(sample.value)!r}")
    return "".join(f"{line}\n" for line in lines)


def checked_place(place: str) -> str:
    """Return a place of metrics, a folder or a push gateway's URL; refuses unsafe URLs and folders marked as public."""
    if is_url(place):
        return checked_url(place, arg("metrics"))
    require_not_in(PUBLIC_MARKS, Path(place), arg("metrics"))
    return os.path.abspath(place)


def write_metrics(place: str, group: str, gauges: Iterable[Gauge]) -> None:
    """Replace the metrics of a group, at once, at a checked place; raises Unsent where they cannot be written.

    In a folder a group is a file `prdp-GROUP.prom`, which this user writes and its group reads.
    """
    body = as_text(gauges).encode()
    if is_url(place):
        name = base64.urlsafe_b64encode(group.encode()).decode()
        send(f"{place.rstrip('/')}/metrics/job/prdp/group@base64/{name}", body, KIND, "PUT")
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".prdp-", dir=place) as folder:  # a reader never sees half a file
            aside = Path(folder, "metrics")
            aside.write_bytes(body)
            aside.chmod(MODE)
            aside.replace(Path(place, f"prdp-{group}.prom"))
    except OSError as error:
        raise Unsent(f"{place} cannot be written: {error.strerror}") from None


def group_of(plan: str) -> str:
    """Return the group of a plan's runs: the plan file's name, and a digest that tells it from others of that name."""
    safe = "".join(c if c.isalnum() and c.isascii() else "_" for c in Path(plan).stem)[:60]
    return f"{safe}-{hashlib.sha256(plan.encode()).hexdigest()[:8]}"


def trace_of(run: Run) -> dict[str, Any]:
    """Return a run as a request of OTLP, under new random names; release, attempt and exit code are the run's alone."""
    trace, root = secrets.token_hex(16), secrets.token_hex(8)
    facts = {"prdp.release": run.release, "prdp.attempt": run.attempt, "prdp.exit_code": run.exit_code}
    release_stage = Stage("prdp release", run.began, run.ended, run.exit_code != 0)
    spans = [{**_span(trace, root, release_stage), "attributes": _attributes(facts)}]
    spans += [{**_span(trace, secrets.token_hex(8), stage), "parentSpanId": root} for stage in run.stages]
    resource = {"attributes": _attributes({"service.name": "prdp", "service.version": version("prdp")})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "prdp"}, "spans": spans}]}]}


def _span(trace: str, name: str, stage: Stage) -> dict[str, Any]:
    began, ended = (str(round(seconds * 1e9)) for seconds in (stage.began, stage.ended))
    times = {"startTimeUnixNano": began, "endTimeUnixNano": ended}
    status = {"code": ERROR if stage.failed else OK}
    return {"traceId": trace, "spanId": name, "name": stage.name, "kind": INTERNAL, **times, "status": status}


def _attributes(facts: dict[str, str | int | None]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in facts.items()
        if value is not None
    ]


class Watch(logging.Handler):
    """What is seen of a run of the plan file `plan`; `ledger`: the one that it opened, once it has."""

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.ledger: Ledger | None = None
        self._plan, self._began = os.path.abspath(plan), time.time()
        self._release: str | None = None
        self._attempt: str | None = None
        self._under_way: list[float] = []
        self._stages: list[Stage] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take in an event of the log."""
        facts = vars(record)["facts"]
        self._release, self._attempt = facts["release"], facts["attempt"]
        if facts["event"] == "begun":
            self._under_way.append(record.created)
        elif facts["event"] in ("ended", "failed"):
            failed = facts["event"] == "failed"
            self._stages.append(Stage(facts["stage"], self._under_way.pop(), record.created, failed))

    def run(self, exit_code: int) -> Run:
        """Return the run, which ends now."""
        observed = (self._plan, self._release, self._attempt, self._began, time.time(), exit_code)
        return Run(*observed, stages=tuple(self._stages))

    def write(self, place: str, run: Run) -> None:
        """Write the metrics of the run and of the ledger; raises Unsent where they cannot be written."""
        write_metrics(place, group_of(run.plan), gauges_of_run(run))
        if self.ledger is not None:
            write_metrics(place, "ledger", gauges_of_ledger(self.ledger))


_WATCH: ContextVar[Watch | None] = ContextVar("what watches the running release", default=None)


@contextmanager
def watched(
    log: Log, plan: str | os.PathLike[str], metrics: str | os.PathLike[str] | None, traces: str | None
) -> Iterator[Watch]:
    """Write metrics and send a trace of a block that runs `plan`, also where it fails; by default where the site says.

    What cannot be written or sent is told by a warning, and ends nothing. In a block that is watched this is the same
    watch. Raises PlanError, before anything is done, on a URL that is unsafe.
    """
    around, here = _WATCH.get(), site()
    if around is not None:
        yield around
        return
    watch, exit_code = Watch(os.fspath(plan)), PrdpError.exit_code
    to: dict[str, Callable[[Run], None]] = {}
    if metrics or here.metrics:
        place = checked_place(os.fspath(metrics or here.metrics or ""))
        to["metrics"] = lambda run: watch.write(place, run)
    if traces or here.traces:
        url = checked_url(traces or here.traces or "", arg("traces"), "/v1/traces")
        to["traces"] = lambda run: send(url, json.dumps(trace_of(run)).encode(), "application/json")
    before = _WATCH.set(watch)
    try:
        with log.heard_by(watch):
            yield watch
        exit_code = 0
    except PrdpError as error:
        exit_code = error.exit_code
        raise
    finally:
        _WATCH.reset(before)
        run = watch.run(exit_code)
        for what, deliver in to.items():
            try:
                deliver(run)
            except Exception as error:  # what the run came to stands, or has an error of its own to be told
                reason = error if isinstance(error, PrdpError) else type(error).__name__
                log.warning(f"{what}: {reason}; the release is not affected")


WAIT = 10.0  # seconds for each step of a try
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Unsent(PrdpError):
    """A collector did not take what was sent; the message names it."""


def is_url(target: str) -> bool:
    """Whether a place is a URL, and no file or folder."""
    return "://" in target or target.lower().startswith(("http:", "https:"))


def checked_url(url: str, option: str, path: str = "") -> str:
    """Return the URL that an option gives, with `path` where it has none; raises PlanError on an unsafe one.

    Plain HTTP is for this machine alone, and a name and password would show in the list of processes.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    shown = f"{option} {in_a_line(re.sub('//[^/]*@', '//', url))}"
    if parts.scheme.lower() not in ("http", "https") or not host or not url.isprintable():
        raise PlanError(f"{shown}: is no URL of HTTP: write https://HOST:PORT/PATH")
    if parts.username is not None:
        raise PlanError(f"{shown}: leave user and password out: run a collector on this machine that adds them")
    if parts.scheme.lower() == "http" and host not in LOOPBACK:
        raise PlanError(f"{shown}: a server beyond this machine must be reached by https")
    return parts._replace(path=path).geturl() if parts.path in ("", "/") else url


def send(url: str, body: bytes, kind: str, method: str = "POST") -> None:
    """Send `body`, of the content type `kind`, to a checked URL; raises Unsent unless it is taken."""
    from http.client import HTTPException  # noqa: PLC0415 — these take a fortieth of a second, and few runs send
    from urllib import error, request  # noqa: PLC0415

    class NoRedirection(request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow none: what is sent is for one server."""

    parts = urlsplit(url)
    handlers = [NoRedirection(), *([request.ProxyHandler({})] if parts.hostname in LOOPBACK else [])]
    asked = request.Request(url, body, {"Content-Type": kind}, method=method)
    try:
        request.build_opener(*handlers).open(asked, timeout=WAIT).close()
        return
    except error.HTTPError as answer:
        reason = f"it answered {answer.code}"
        answer.close()
    except (OSError, HTTPException, ValueError) as failure:
        reason = _reason(failure)
    raise Unsent(f"{_server(parts)} did not take it: {reason}")


def reach(url: str) -> None:
    """Connect to the server of a checked URL, with TLS where the URL says so, and send nothing; raises Unsent."""
    import ssl  # noqa: PLC0415 — most runs have no server to speak to

    parts = urlsplit(url)
    secure = parts.scheme.lower() == "https"
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or (443 if secure else 80)), WAIT) as connection:
            if secure:
                ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
    except (OSError, ValueError) as error:
        raise Unsent(f"{_server(parts)} cannot be reached: {_reason(error)}") from None


def _server(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, Exception) else error
    message = getattr(cause, "verify_message", None)  # of a certificate
    return str(message or getattr(cause, "strerror", None) or type(cause).__name__)
