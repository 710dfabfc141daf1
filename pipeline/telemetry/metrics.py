"""Metrics for Prometheus, in its text format: of the last run of each plan, and of what a ledger holds.

They go to a folder that node_exporter's textfile collector reads, or to a push gateway. Source of the format:
Prometheus, Exposition formats, text format version 0.0.4; of the gateway's paths: Pushgateway, API.
"""

import base64
import hashlib
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.ledger.store import Ledger
from pipeline.telemetry.run import Run
from pipeline.web import Unsent, checked_url, is_url, send

KIND = "text/plain; version=0.0.4; charset=utf-8"
MODE = 0o640  # the group, by which node_exporter's own user reads the folder
UNDER_WAY = ("reserved", "drawn", "held", "published")


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
    limits = [(account.name, each.to_json()) for account in accounts for each in account.limits]
    for key, told in (("rho", "A limit, in rho."), ("left", "What is left by a limit, in rho, rounded down.")):
        for name, limit in limits:
            metric = "budget_limit_rho" if key == "rho" else "budget_left_rho"
            yield Gauge(metric, told, float(limit[key]), {"dataset": name, "at": str(limit["at"])})


def as_text(gauges: Iterable[Gauge]) -> str:
    """Return metrics in Prometheus's text format; those of one name stand together."""
    by_name: defaultdict[str, list[Gauge]] = defaultdict(list)
    for gauge in gauges:
        by_name[f"prdp_{gauge.name}"].append(gauge)
    lines = []
    for name, samples in by_name.items():
        lines += [f"# HELP {name} {samples[0].help}", f"# TYPE {name} gauge"]
        for each in samples:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in each.labels.items() if value is not None)
            lines.append(f"{name}{{{labels}}} {float(each.value)!r}")
    return "".join(f"{line}\n" for line in lines)


def checked_place(place: str) -> str:
    """Return a place of metrics, a folder or the URL of a push gateway; raises PlanError on an unsafe URL."""
    return checked_url(place, "--metrics") if is_url(place) else os.path.abspath(place)


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


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
