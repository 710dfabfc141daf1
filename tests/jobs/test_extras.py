"""An installation without the extras: a release needs none, and what needs one says in a line how to install it."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.base.errors import EXTRAS
from tests.support.ledgers import ledger_file
from tests.support.patience import PATIENCE
from tests.support.world import records, write_world

ROOT = Path(__file__).parents[2]
HIDDEN = "import sys\nsys.modules.update(dict.fromkeys(sys.argv[1].split(',')))\n"  # None: it cannot be imported
CALLS = f"{HIDDEN}from jobs.cli import main\nsys.exit(max(main(line.split('\\t')) for line in sys.argv[2:]))"


def without(packages: str, *calls: Iterable[object]) -> subprocess.CompletedProcess[str]:
    """Run commands in a process in which these packages cannot be imported; its exit code is the largest of theirs."""
    command = [sys.executable, "-c", CALLS, packages, *("\t".join(map(str, call)) for call in calls)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path, records(50))


def test_a_release_on_dask_needs_no_extra(plan: Path) -> None:
    ledger = ("--ledger", ledger_file(plan.parent / "state" / "ledger.sqlite"))
    published = plan.parent / "releases" / "small-release"
    calls = (("release", plan, "--csv", *ledger), ("explain", plan), ("verify", published), ("ledger", "show", *ledger))
    done = without(",".join(EXTRAS), *calls)
    assert done.returncode == 0, done.stderr
    formats = {"xlsxwriter": "xlsx", "duckdb": "duckdb", "deltalake": "delta"}
    exports = [("export", published, "--to", to, "--out", plan.parent / to) for to in formats.values()]
    done = without(",".join(formats), *exports)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"error: --to {to} needs the package {package}, which is not installed: run pip install 'prdp[{to}]'"
            for package, to in formats.items()
        ],
    )


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("psycopg", ["ledger", "show", "--ledger", "postgresql://me@127.0.0.1:1/db"]),
        ("matplotlib", ["explain", "PLAN", "--plot", "PLAN.svg"]),
        ("matplotlib", ["evaluate", "conf/studies/cattle.yaml", "--records", "10", "--out", "PLAN.study"]),
        ("boto3", ["release", "PLAN", "--out", "s3://bucket/releases", "--ledger", "LEDGER"]),
        ("distributed", ["release", "PLAN", "--scheduler", "tcp://127.0.0.1:1", "--ledger", "LEDGER"]),
    ],
)
def test_a_missing_extra_is_named_in_one_line(
    package: str, call: list[str], plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ledger_file(plan.parent / "state" / "ledger.sqlite")
    done = without(package, [word.replace("PLAN", str(plan)).replace("LEDGER", str(ledger)) for word in call])
    errors = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert (done.returncode, done.stdout, len(errors)) == (2, "", 1), done.stderr
    assert f"needs the package {package}, which is not installed" in errors[0]
    assert errors[0].endswith(f"run pip install 'prdp[{EXTRAS[package]}]'")
    assert main(["ledger", "show", "--json", "--ledger", ledger]) == 0
    assert capsys.readouterr().out == "[]\n"  # nothing was reserved
