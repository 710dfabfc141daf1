"""What people read on a terminal of 80 columns: no line is wider, but for a path or a digest that cannot be broken."""

import re
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.base.plain import WIDTH, wrapped
from tests.support.corpus import build
from tests.support.ledgers import ledger_file
from tests.support.terminal import COLUMNS
from tests.support.world import write_world

WHOLE = re.compile(r"\S*/\S*|\S*[0-9a-f]{40,}\S*|\S{40,}")  # a path, a digest, or a name as long as half a line
LONG = "a-release-with-a-name-that-is-as-long-as-anybody-would-write-it"


def too_wide(told: str) -> list[str]:
    """The lines of some output that a terminal would break."""
    return [line for line in told.splitlines() if len(WHOLE.sub("", line)) > COLUMNS]


@pytest.mark.parametrize("name", ["corpus", LONG])
def test_a_release_and_its_ledger_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = build(tmp_path / "world")
    plan, out = folder / "plan.yaml", folder / "releases"
    plan.write_text(plan.read_text().replace("release: corpus", f"release: {name}"))
    at = ("--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite"))
    calls: list[tuple[str, ...]] = [
        ("explain", str(plan)),
        ("explain", str(plan), "--detail", "--change", "employment=10:12", "--factor", "1.1"),
        ("check", str(plan), "--report", str(tmp_path / "report.txt"), *at),
        ("ledger", "check", str(plan), *at),
        ("release", str(plan), "--hold", "--out", str(out), *at),
        ("ledger", "show", *at),
        ("ledger", "show", name, *at),
        ("ledger", "show", "--at", "employment=10,payroll=500", *at),
        ("ledger", "show", "--at", "employment=10000,payroll=500000", *at),
        ("ledger", "approve", name, *at),
        ("release", str(plan), "--out", str(out), *at),
        ("verify", str(out / name)),
        ("ledger", "verify", "--release", str(out / name), *at),
        ("export", str(out / name), "--to", "csv", "--out", str(tmp_path / "csv")),
    ]
    for call in calls:
        assert main([*call, "--quiet"]) == 0, call
        told = capsys.readouterr().out
        assert told
        assert not too_wide(told), call


def test_a_trial_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_world(tmp_path, None, release=LONG)
    assert main(["try", str(plan), "--records", "2000", "--draws", "2", "--quiet"]) == 0
    assert not too_wide(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("x" * WIDTH, ["x" * WIDTH]),
        (f"    {'a' * 40}   {'b' * 40}", [f"    {'a' * 40}", f"        {'b' * 40}"]),
        (f"manifest /{'p' * 90}", ["manifest", f"/{'p' * 90}"]),
        (f"{'word ' * 17}end", [("word " * 16).strip(), "word end"]),
    ],
)
def test_lines_are_broken_between_columns_or_words(line: str, broken: list[str]) -> None:
    assert wrapped(line) == broken


def test_a_line_that_is_too_wide_is_noticed() -> None:
    prose = "it says this and that " * 4
    assert too_wide(f"short\n{prose}\nhead {'0' * 64}\n/{'p' * 200}") == [prose]
