"""The command's contract (docs/commands.md): exit codes, JSON, one plain line for an error, nothing confidential."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main, places
from jobs.commands import COMMANDS
from jobs.options import parser_with
from pipeline.plan.load import load_plan
from pipeline.plan.structure import Structure
from tests.support.ledgers import ledger_file
from tests.support.patience import PATIENCE
from tests.support.world import BUDGET, QUERIES, records, write_world

TIGHT = 0.36893174760753610  # 1 − (0.1/sinh 0.1)(1 − 1/e): Laplace noise of scale 10 at influence 10
PAPER = 0.46211715726000976  # tanh(½)·1


def prdp(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own."""
    command = [sys.executable, "-m", "jobs.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path, records(200))


def test_generate_explain_release_verify_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, state = tmp_path / "data", tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert prdp("generate", "--records", 500, "--seed", 3, "--out", data).returncode == 0
    assert {path.name for path in data.iterdir()} == {"microdata", "domain", "plan.yaml"}
    first = prdp("release", data / "plan.yaml", "--csv")
    assert first.returncode == 0, first.stderr
    run_json(capsys, "explain", data / "plan.yaml", "--at", "employment=10,payroll=500")
    outcome = run_json(capsys, "release", data / "plan.yaml")
    assert outcome.keys() == {"release", "attempt", "state", "out", "tables", "already", "not_done"}
    assert outcome["state"] == "settled"
    assert f"attempt {outcome['attempt']}" in first.stdout
    release = data / "releases" / outcome["release"]
    for query, table in outcome["tables"].items():
        assert Path(table["path"]) == release / outcome["attempt"] / "tables" / query
        lines = (release / outcome["attempt"] / "tables" / f"{query}.csv").read_text().splitlines()
        assert len(lines) == table["rows"] + 1
    beside_tables = {"tables", "codes", "site", "policy.json", "structure.json", "datapackage.json", "report.html"}
    assert {path.name for path in (release / outcome["attempt"]).iterdir()} == beside_tables
    structure = (release / outcome["attempt"] / "structure.json").read_text()
    assert structure == Structure.of(load_plan(data / "plan.yaml")).to_json()
    ledger = state / "prdp" / "ledger.sqlite"
    assert (ledger.parent.stat().st_mode & 0o777, ledger.stat().st_mode & 0o777) == (0o700, 0o600)
    assert main(["verify", str(release)]) == 0
    capsys.readouterr()
    table = next((release / outcome["attempt"] / "tables").rglob("*.parquet"))
    table.write_bytes(table.read_bytes()[:-1])
    assert main(["verify", str(release)]) == 5
    assert "differs from the manifest" in capsys.readouterr().err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_explain_json_has_the_contracts_shape(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = run_json(capsys, "explain", plan, "--at", "employment=10,payroll=500", "--at", "employment=0,payroll=0")
    keys = "verdict plan_digest unit size queries left_out_test total total_means paper"
    assert " ".join(explained) == keys
    assert explained["unit"] == "record"
    establishments, employment, payroll = explained["queries"]
    assert employment["mechanism"] == {"kind": "laplace", "sigma": 10, "policy": "tight", "lattice": "measure"}
    at = {"employment": 10, "payroll": 500}
    assert establishments["losses"][0] == {"at": at, "influence": 1, "rho": 0.125, "epsilon": None}
    assert employment["losses"][0]["epsilon"] == 1
    # upper bounds: (ln 11)²/(2·0.25) with the rounding step, near 2⁻³¹
    assert 0 <= employment["losses"][0]["rho"] - TIGHT < 1e-15
    assert 0 <= payroll["losses"][0]["rho"] - 11.499803478617546 < 1e-8
    assert [loss["influence"] for loss in payroll["losses"]] == [500, 0]
    assert explained["total"][0]["rho"] == pytest.approx(0.125 + TIGHT + 11.49980348 + 1 / 20_000, rel=1e-8)
    assert 0 <= explained["paper"][0]["queries"]["employment_sector_county"] - PAPER < 1e-15
    nothing = {"at": {"employment": 0, "payroll": 0}, "epsilon": None}
    assert explained["total"][1] == nothing | {"rho": pytest.approx(0.125 + 1 / 20_000, rel=1e-12)}
    test = {"share": 0.01, "sigma": 100, "multiple": 5.3}
    losses = [{"at": at, "rho": 1 / 20_000, "epsilon": None}, nothing | {"rho": 1 / 20_000}]
    assert explained["left_out_test"] == test | {"losses": losses}


def test_a_reference_counts_the_queries_of_its_place_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def only(name: str, sector: str) -> dict[str, object]:
        return {**QUERIES[1], "name": name, "where": {"naics2": [sector]}}

    plan = write_world(tmp_path, None, queries=[only("made", "31-33"), only("sold", "44-45")])
    reference = "employment=10,payroll=500"
    anywhere = run_json(capsys, "explain", plan, "--at", reference)
    alone = anywhere["queries"][0]["losses"][0]["rho"]
    assert anywhere["total"][0]["rho"] == pytest.approx(alone + 1 / 20_000)  # the filters exclude each other
    assert anywhere["total"][0]["epsilon"] == pytest.approx(1.01, rel=1e-15)  # 10 under 10, and the test's 1/100
    sold = run_json(capsys, "explain", plan, "--at", f"naics3=441,{reference}")
    assert [query["losses"][0]["influence"] for query in sold["queries"]] == [0, 10]
    nowhere = run_json(capsys, "explain", plan, "--at", f"naics2=72,{reference}")
    assert nowhere["total"][0]["rho"] == pytest.approx(1 / 20_000, rel=1e-5)
    test = {"share": 0.01, "sigma": 100, "multiple": 14, "noise": "laplace"}
    assert {name: nowhere["left_out_test"][name] for name in test} == test
    assert nowhere["left_out_test"]["losses"][0]["epsilon"] == nowhere["total"][0]["epsilon"] == 0.01


def test_explain_reads_no_microdata_and_speaks_to_people(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plan.parent / "microdata" / "part-0.parquet").unlink()
    assert main(["explain", str(plan)]) == 0
    text = capsys.readouterr().out
    assert "12.00    100  within: 12.0 %" in text  # 11.99373…, rounded up
    assert main(["explain", str(plan), "--detail"]) == 0
    detailed = capsys.readouterr().out
    assert detailed.startswith(text)
    assert "rho 11.9938" in detailed  # likewise


WRONG_CALLS = [
    (["explain", "PLAN", "--at", "employmnt=3"], 2, "nearest known: employment"),
    (["explain", "PLAN", "--at", "employment=3"], 2, "must also name payroll"),
    (["explain", "PLAN", "--at", "employment=-3,payroll=1"], 2, "at least 0"),
    (["explain", "PLAN", "--at", "employment=nan,payroll=1"], 2, "at least 0"),
    (["generate", "--records", "x", "--out", "d"], 2, "whole number"),
    (["ledger", "reject", "r", "--ledger", "LEDGER"], 2, "required: --reason"),
    (["ledger", "init", "d", "--ledger", "LEDGER"], 2, "required: --budget"),
    (["ledger", "staging"], 2, "required: ACT"),
]


@pytest.mark.parametrize(("call", "code", "words"), WRONG_CALLS, ids=lambda value: str(value)[:40])
def test_a_wrong_call_is_told_in_one_plain_line(
    call: list[str], code: int, words: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"PLAN": str(plan), "LEDGER": ledger_file(plan.parent / "state" / "ledger.sqlite")}
    if call[:1] == ["release"] and "PLAN" in call and "--ledger" not in call:
        call = [*call, "--ledger", "LEDGER"]
    assert main([named.get(word, word) for word in call]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    told = [line for line in captured.err.splitlines() if not line.startswith("[")]
    assert len(told) == 1
    assert told[0].startswith("error: ")
    assert words in told[0]
    assert "secret" not in captured.err


def test_exit_codes_of_refusals(tmp_path: Path) -> None:
    def release(name: str, **changes: Any) -> int:
        folder = tmp_path / name
        microdata = records(50)
        if changes.pop("bad", False):
            microdata = microdata.set_column(3, "employment", [[0.5] * 50])
        plan = write_world(folder, microdata, **changes)
        return main(["release", str(plan), "--ledger", ledger_file(folder / "ledger" / "l.sqlite"), "--json"])

    assert release("fine") == 0
    assert release("fine") == 0  # already published
    assert release("fine", interval=0.9) == 5
    assert release("budget", budget=[{**BUDGET[0], "rho": 0.1}]) == 3
    assert release("contract", bad=True) == 4
    assert release("plan", interval=2) == 2


def test_an_unexpected_error_shows_no_value(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leak(*_: object, **__: object) -> None:
        raise ValueError("payroll 7654321 of establishment E17")

    monkeypatch.setattr("prdp.plans.load_plan", leak)
    assert main(["explain", str(plan)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: unexpected ValueError at test_cli.py:")
    assert "7654321" not in told
    assert main(["explain", str(plan), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_every_command_and_act_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [place.path.split()[1:] for place in places(parser_with(None))][1:]
    assert {call[0] for call in calls} == set(COMMANDS)
    for call in calls:
        assert main([*call, "--help"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: prdp {' '.join(call)} ")
        assert f"example:\n  prdp {' '.join(call)}" in shown


def test_help_and_version_of_the_command_itself() -> None:
    shown = prdp("--help")
    assert shown.returncode == 0
    assert all(f"\n    {name}" in shown.stdout for name in COMMANDS)
    shown = prdp("--version")
    assert (shown.returncode, shown.stdout) == (0, f"prdp {version('prdp')}\n")


def test_the_readmes_plan_is_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    text = readme.split("```yaml\n")[1].split("```")[0]
    write_world(tmp_path, None)
    (tmp_path / "readme.yaml").write_text(text)
    query, _ = run_json(capsys, "explain", tmp_path / "readme.yaml")["queries"]
    # ln(1.1)²/(2·0.35²), as the README shows it for a = 100, σ = 0.35
    assert 0 <= query["losses"][0]["rho"] - 0.037077674 < 1e-8
