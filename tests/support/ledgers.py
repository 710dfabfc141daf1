"""Small reservations for tests of the ledger: a count whose one draw costs exactly `UNIT`."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.staging import Facts, Staging
from udfs.mechanisms.catalogue import build

UNIT = Fraction(2)  # 1²/(2σ²) at σ = ½
FACTS = {"unit": "record", "measures": {"payroll": {"type": "decimal", "step": 0.1}}}
ABOUT = {"engine": {"name": "dask", "versions": {"dask": "1"}}, "tables": [{"query": "q", "rows": 2}]}


def policy(sigma: object = 0.5) -> PolicySum:
    mechanism = build({"kind": "gaussian", "sigma": sigma, "policy": "paper"}, Fraction(1))
    return PolicySum((QueryPolicy("q", None, mechanism),), (frozenset({0}),))


def reservation(release: str, draws: int = 100, **changes: Any) -> Reservation:
    """A reservation of one count, under a limit that fits `draws` charges of the whole dataset."""
    wanted: dict[str, Any] = {
        "release": release,
        "supersedes": None,
        "dataset": "d",
        "dataset_facts": FACTS,
        "digest": f"sha256:{release}",
        "plan": {"release": release},
        "policy": policy(),
        "limits": [BudgetLimit(at={}, rho=draws * UNIT, label="any record")],
        "out": "/out",
        "code": "sha256:code",
    }
    return Reservation(**(wanted | changes))


def stage(ledger: Ledger, release: str, attempt: str, text: str = "cell,value\n") -> Facts:
    """A complete staged attempt of one table in two files and two further files."""
    staging = Staging(ledger.staging_root, release, attempt)
    staging.create()
    folder = staging.table_folder("q")
    for part in range(2):
        (folder / f"part-{part}.parquet").write_bytes(f"{text}{part}".encode() * 3000)
    staging.write_text("policy.json", "{}")
    staging.write_text("report.html", "<html></html>")
    return staging.complete(ABOUT)


def staged(ledger: Ledger, release: str, out: Path) -> str:
    """Reserve, draw and stage `release`; return the attempt."""
    ledger.reserve(reservation(release, out=str(out)))
    attempt = ledger.draw(release, "sha256:pin")
    stage(ledger, release, attempt)
    return attempt
