"""`--set`: every command that takes a plan takes the values of its variables, and what is released holds none."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli import main
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

COMMANDS = {  # every command that takes a plan, with what else it needs
    "explain": ["explain", "PLAN"],
    "release": ["release", "PLAN"],
    "check": ["check", "PLAN"],
    "try": ["try", "PLAN"],
    "diagnose": ["diagnose", "PLAN", "--out", "confidential"],
    "ledger check": ["ledger", "check", "PLAN"],
    "calibrate": ["calibrate", "PLAN"],
    "prepare": ["prepare", "RAW", "--plan", "PLAN", "--out", "prepared"],
    "generate --beside": ["generate", "--like", "cbp-2011", "--describe", "--beside", "PLAN"],
    "evaluate --suppression": ["evaluate", "--suppression", "PLAN", "--out", "study"],
    "evaluate --publication": ["evaluate", "--publication", "PLAN", "--out", "study"],
}


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = write_world(tmp_path, records(30))
    data = yaml.safe_load(path.read_text())
    data["variables"] = {"month": {"pattern": "20[0-9]{2}-[01][0-9]", "about": "The month of reference"}}
    data["release"] = "small-{{ month }}"
    data["dataset"] |= {"name": "world-{{ month }}", "family": "world", "path": "{{ month }}"}
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    (tmp_path / "microdata").rename(tmp_path / "2026-01")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_template_asks_for_its_values(template: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = [str(template) if word == "PLAN" else word for word in COMMANDS[command]]
    assert main(call) == 2
    assert "variables.month: has no value: give it by --set month=VALUE" in capsys.readouterr().err
    for wrong, said in (("month=1", "does not match"), ("year=2026", "unknown variable"), ("x", "as NAME=VALUE")):
        assert main([*call, "--set", wrong]) == 2
        assert said in capsys.readouterr().err


def test_every_month_is_one_plan_and_the_family_counts_them(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]

    def prdp(*call: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*call, "--json", *ledger]) == code, capsys.readouterr().err
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else shown.err

    release = ["release", str(template), "--set"]
    assert "family world is not registered" in prdp(*release, "month=2026-01", code=5)
    (tmp_path / "family.yaml").write_text(
        yaml.safe_dump({"unit": "record", "limits": [{"at": {"employment": 10, "payroll": 500}, "rho": 15}]})
    )
    assert main(["ledger", "init", "world", "--budget", str(tmp_path / "family.yaml"), *ledger]) == 0
    released = prdp(*release, "month=2026-01")
    assert released["release"] == "small-2026-01"
    (tmp_path / "2026-01").rename(tmp_path / "2026-02")
    assert "the limit of family world" in prdp(*release, "month=2026-02", code=3)
    assert "{{" not in (tmp_path / "releases" / "small-2026-01" / "release.json").read_text()
    (entry,) = prdp("ledger", "show", "small-2026-01")
    assert entry["dataset"] == "world-2026-01"


def test_calibrate_keeps_the_variables(template: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = yaml.safe_load(template.read_text())
    data["queries"][0]["mechanism"] = {"kind": "gaussian", "calibrate": {"standard_error": 3}}
    template.write_text(yaml.safe_dump(data, sort_keys=False))
    values = ["--set", "month=2026-01", "--json"]
    assert main(["calibrate", str(template), "--out", "solved.yaml", *values]) == 0
    digest = json.loads(capsys.readouterr().out)["plan_digest"]
    solved = yaml.safe_load(Path("solved.yaml").read_text())
    assert (solved["release"], "sigma" in solved["queries"][0]["mechanism"]) == ("small-{{ month }}", True)
    assert main(["explain", "solved.yaml", *values]) == 0
    assert json.loads(capsys.readouterr().out)["plan_digest"] == digest
    data["queries"][0]["mechanism"]["calibrate"] = "plan"
    template.write_text(yaml.safe_dump(data | {"calibrate": {"minimise": "standard_error"}}, sort_keys=False))
    assert main(["calibrate", str(template), "--out", "chosen.yaml", *values]) == 0
    assert yaml.safe_load(Path("chosen.yaml").read_text())["dataset"]["path"] == "{{ month }}"
