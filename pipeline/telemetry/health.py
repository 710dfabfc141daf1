"""Metrics of a ledger's health, which `prdp ledger health` writes beside those of the ledger."""

from collections import Counter
from collections.abc import Iterable, Iterator

from pipeline.health.findings import MEND, Finding, mend
from pipeline.ledger.store import Ledger
from pipeline.telemetry.metrics import Gauge, gauges_of_ledger, write_metrics
from pipeline.web import Unsent


def write_health(place: str, ledger: Ledger, findings: Iterable[Finding]) -> list[Finding]:
    """Write the metrics of a ledger and of its health at a checked place; return a finding where they cannot be."""
    try:
        write_metrics(place, "health", gauges_of_findings(findings))
        write_metrics(place, "ledger", gauges_of_ledger(ledger))
    except Unsent as error:
        return [mend("metrics", str(error), "correct --metrics, or metrics in the site's file (docs/metrics.md)")]
    return []


def gauges_of_findings(findings: Iterable[Finding]) -> Iterator[Gauge]:
    """Yield how many findings of each check of a ledger's health must be mended."""
    found = Counter[str]()
    for finding in findings:
        found[finding.check] += finding.state == MEND
    for check, number in found.items():
        yield Gauge("health_findings", "Findings of prdp ledger health to mend.", number, {"check": check})
