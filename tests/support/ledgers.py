"""Small reservations for tests of the ledger: a count whose one draw costs exactly `UNIT`."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg

import prdp
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference
from pipeline.ledger.entries import Entry
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.storage.paths import locate
from pipeline.storage.staging import AttemptContents, Staging
from udfs.mechanisms.catalogue import build
from udfs.records.statistics import Count

ROOT = Path(__file__).parents[2]
# Where there is a folder in memory: SIGKILL loses nothing that was written there, so no disk need be waited for.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
UNIT = Fraction(2)  # 1²/(2σ²) at σ = ½
FACTS = {"unit": "record", "measures": {"payroll": {"type": "decimal", "step": 0.1}}}
ABOUT = {"engine": {"name": "dask", "versions": {"dask": "1"}}, "tables": [{"query": "q", "rows": 2}]}


def policy(sigma: object = 0.5) -> PolicySum:
    mechanism = build({"kind": "gaussian", "sigma": sigma, "policy": "paper"}, Fraction(1))
    return PolicySum((QueryPolicy("q", Count(), mechanism),), (frozenset({0}),))


def reservation(release: str, draws: int = 100, **changes: Any) -> Reservation:
    """A reservation of one count, under a limit that fits `draws` charges of the whole dataset."""
    wanted: dict[str, Any] = {
        "release": release,
        "supersedes": None,
        "dataset": "d",
        "dataset_facts": FACTS,
        "digest": f"sha256:{release}",
        "plan": {"release": release, "dataset": {"duplicates": "trust"}},
        "policy": policy(),
        "limits": [Limit(Reference.of({}), draws * UNIT)],
        "out": "/out",
        "code": "sha256:code",
    }
    return Reservation(**(wanted | changes))


def stage(ledger: Ledger, release: str, attempt: str, parts: int = 2) -> AttemptContents:
    """A complete staged attempt of one table in `parts` files, each as random as a draw is, and two further files."""
    staging = Staging(locate(ledger.staging_root), release, attempt)
    staging.create()
    folder = staging.table_folder("q")
    for part in range(parts):
        (folder / f"part-{part}.parquet").write(os.urandom(9000))
    staging.write_text("policy.json", "{}")
    staging.write_text("report.html", "<html></html>")
    return staging.complete(ABOUT)


def staged(ledger: Ledger, release: str, out: Path) -> str:
    """Reserve, draw and stage `release`; return the attempt."""
    ledger.reserve(reservation(release, out=str(out)))
    attempt = ledger.draw(release, "sha256:pin")
    stage(ledger, release, attempt)
    return attempt


def child(script: str, *arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    """A process that runs tests/support/<script>.py; its standard output is a pipe."""
    command = [sys.executable, "-m", f"tests.support.{script}", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=subprocess.PIPE, text=True)


def raw(ledger: Ledger) -> Any:
    """A session of the database's own driver, whose every statement is committed; not through the product."""
    if ledger.path is not None:
        return sqlite3.connect(ledger.path, isolation_level=None)
    return psycopg.connect(**ledger._database._address, options="-c search_path=prdp", autocommit=True)


def entries(ledger: Ledger) -> list[Entry]:
    names = [field.name for field in fields(Entry)]
    with closing(raw(ledger)) as connection:
        found = connection.execute(f"SELECT {', '.join(names)} FROM entries ORDER BY seq").fetchall()
    return [Entry(**dict(zip(names, row, strict=True))) for row in found]


def append(ledger: Ledger, entry: Entry) -> None:
    """Append an entry behind the ledger's back."""
    marks = ", ".join(["?" if ledger.path else "%s"] * len(entry.columns))
    with closing(raw(ledger)) as connection:
        connection.execute(
            f"INSERT INTO entries ({', '.join(entry.columns)}) VALUES ({marks})", [*entry.columns.values()]
        )


def staged_files(root: Path) -> list[Path]:
    """All files that are staged of releases; the mark of the ledger beside them is of none."""
    return [path for path in root.rglob("*") if path.is_file() and path.parent != root]


def drawn_and_destroyed(ledger: Ledger, release: str, times: int, exposed: bool = False) -> None:
    for _ in range(times):
        ledger.destroyed(release, ledger.draw(release, "sha256:pin"), "incomplete", exposed)


ATTEMPT = "0123456789abcdef"


def filled(staging: Staging) -> AttemptContents:
    """A complete staged attempt of two small files."""
    staging.create()
    (staging.table_folder("q") / "part-0.parquet").write(b"rows")
    staging.write_text("policy.json", "{}")
    return staging.complete(ABOUT)


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Whether a folder, and which mode, of everything from `folder` down."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]}


def is_bare(path: Path) -> bool:
    """Whether nothing was recorded in a ledger file, if there is one."""
    return not path.exists() or prdp.open_ledger(path).entries() == []


def ledger_file(path: Path) -> str:
    """The address of a ledger file, which is made where it is absent."""
    create_ledger(str(path))
    return str(path)
