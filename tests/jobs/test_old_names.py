"""Calls by old names do what those of now do, for one version, with one line that names the new call."""

from pathlib import Path

import pytest

from jobs.cli import main
from jobs.commands import COMMANDS, OLD, Old, renewed
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

DESIGN = "--limit 10:0.12 --limit 100:1 --out {}.json"
CALLS = {  # old name, with what makes it run: a call, and the exit code
    "design": ("design", "study design", DESIGN, 0),
    "evaluate --suppression": ("evaluate --suppression", "study suppression", "PLAN --out {}", 2),
    "evaluate --publication": ("evaluate --publication", "study publication", "nowhere.yaml --out {}", 2),
    "evaluate": ("evaluate", "study run", "nowhere.yaml --out {}", 2),
    "generate --describe": ("generate --describe", "study today", "--like cbp-2011", 0),
    "calibrate --compare": ("calibrate --compare", "study compare", "--standard-error x --total 500", 2),
    "calibrate --scales": ("calibrate --scales", "study scales", "--epsilon 1 --delta 1e-5", 0),
    "calibrate --rho": ("calibrate", "study epsilon", "--rho 0.5 --delta 1e-6", 0),
    "calibrate --best-alpha": (
        "calibrate --kind symmetric_stable --best-alpha error",
        "study alpha --least error",
        "--interval 9 --total 3",
        2,
    ),
    "calibrate --group-loss": (
        "calibrate --kind groupwise_log",
        "study group",
        "--group-loss 1 --group 100 --relative-error 0.1 --total 50",
        0,
    ),
    "calibrate --epsilon": ("calibrate", "study rho", "--epsilon 1 --delta 1e-6", 0),
    "site": ("site", "export --to site", "nowhere --out {}", 5),
    "keys": ("keys create", "ledger admin keys create", "{}.key", 0),
    "completion": ("completion", "--completion", "fish", 0),
    "ledger check": ("ledger check", "ledger afford", "PLAN LEDGER", 0),
    "ledger health": ("ledger health", "doctor --ledger-only", "LEDGER", 0),
    "ledger close": ("ledger close", "ledger admin close", "--reason x LEDGER", 0),
    "ledger reopen": ("ledger reopen", "ledger admin reopen", "LEDGER", 5),
    "ledger import": ("ledger import", "ledger admin import", "nowhere.jsonl LEDGER", 2),
    "ledger export": ("ledger export", "ledger admin export", "LEDGER", 0),
    "ledger migrate": ("ledger migrate", "ledger admin migrate", "LEDGER", 0),
    "ledger staging": ("ledger staging purge", "ledger admin staging purge", "LEDGER", 0),
}


def name_of(old: Old) -> str:
    return f"{old.words} {old.option}".strip()


def test_every_old_name_has_a_call_here() -> None:
    assert {name_of(old) for old in OLD} == set(CALLS)
    assert len(COMMANDS) <= 16


@pytest.mark.parametrize("name", CALLS)
def test_an_old_name_does_what_the_new_one_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    old, new, rest, code = CALLS[name]
    plan = write_world(tmp_path, records(20)) if "PLAN" in rest else None
    texts = []
    for n, call in enumerate((old, new)):
        ledger = f"--ledger {ledger_file(tmp_path / f'of{n}' / 'ledger.sqlite')}" if "LEDGER" in rest else ""
        words = f"{call} {rest}".replace("PLAN", str(plan)).replace("LEDGER", ledger).format(f"out{n}").split()
        assert main([*words, "--quiet"] if name != "completion" else words) == code
        shown = capsys.readouterr()
        text = shown.out + "".join(line for line in shown.err.splitlines(True) if not line.startswith("["))
        texts.append(text.replace(f"out{n}", "out").replace(f"of{n}", "of"))
    if name not in ("design", "keys", "ledger close", "ledger export"):  # times, keys
        assert texts[0] == texts[1]


def test_one_line_names_the_new_call_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["calibrate", "--rho", "0.5", "--delta", "1e-6"]
    assert main(call) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("this call has a new name: prdp study epsilon; the old one goes with the next version")
    assert main([*call, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_options_that_did_nothing_by_an_old_name_still_do_nothing() -> None:
    call = "evaluate --engine dask --suppression plan.yaml --workers=2 --master local[1] --scheduler a:1 --seed 3"
    assert renewed(call.split())[0] == ["study", "suppression", "plan.yaml", "--seed", "3"]
    health = "ledger health --operator somebody --longest 2 --operator=another"
    assert renewed(health.split())[0] == ["doctor", "--ledger-only", "--longest", "2"]


def test_a_call_of_now_is_left_as_it_is() -> None:
    for call in (["calibrate", "--kind", "laplace", "--epsilon", "1", "--at", "10"], ["ledger", "show"], []):
        assert renewed(call) == (call, None)
