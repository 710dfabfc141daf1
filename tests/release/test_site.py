"""What a site lays down for everyone who runs prdp on its machines, and who is said to act."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.release import installation as site_module
from pipeline.release.installation import operator_named
from tests.support.world import budget_file, records, write_world


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_world(tmp_path, records(50))
    return tmp_path


@pytest.fixture
def at_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def lay_down(**said: Any) -> Path:
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump(said))
        monkeypatch.setattr(site_module, "FILE", tmp_path / "absent.yaml")
        monkeypatch.setenv("PRDP_SITE", str(path))
        return path

    return lay_down


def test_a_site_fixes_the_ledger_and_requires_registered_datasets(
    at_site: Callable[..., Path], world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_site(ledger="fixed/ledger.sqlite", require_registered=True)
    call = ["release", str(world / "plan.yaml"), "--json"]
    assert main([*call, "--ledger", str(tmp_path / "mine.sqlite")]) == 2
    assert "fixes the ledger of this site" in capsys.readouterr().err
    assert main(call) == 5
    assert "fixed/ledger.sqlite is not there" in capsys.readouterr().err
    assert main(["ledger", "create"]) == 0
    assert main(call) == 5
    assert "not registered, which this site requires" in capsys.readouterr().err
    assert main(["ledger", "init", "small-world", "--budget", str(budget_file(world)), "--json"]) == 0
    assert main([*call, "--ledger", str(tmp_path / "fixed" / "ledger.sqlite")]) == 0
    assert not (tmp_path / "mine.sqlite").exists()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"leger": "x"}, "leger: unknown key; nearest known key: ledger"),
        ({"ledger": 3}, "ledger: must be text"),
        ({"require_registered": "yes"}, "require_registered: must be true or false"),
    ],
)
def test_a_wrong_site_file_is_told(
    at_site: Callable[..., Path], said: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at_site(**said)
    assert main(["ledger", "show"]) == 2
    assert told in capsys.readouterr().err


def test_a_variable_takes_the_place_of_no_file_of_the_site(
    at_site: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_site(ledger="theirs")
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text("ledger: postgresql://host/prdp\n")
    assert site_module.site().ledger == str(tmp_path / "theirs")
    monkeypatch.setattr(site_module, "FILE", fixed)
    assert site_module.site().ledger == "postgresql://host/prdp"
    monkeypatch.setattr(site_module, "FILE", tmp_path / "absent.yaml")
    monkeypatch.setenv("PRDP_SITE", str(tmp_path / "nowhere"))
    with pytest.raises(PlanError, match="no such file"):
        site_module.site()


def test_the_operator_is_what_is_supplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRDP_OPERATOR", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: "login")
    assert operator_named(None) == "login"
    monkeypatch.setenv("PRDP_OPERATOR", "by variable")
    assert (operator_named(None), operator_named("by option")) == ("by variable", "by option")
    with pytest.raises(PlanError, match="printable"):
        operator_named("two\nlines")

    def nobody() -> str:
        raise OSError

    monkeypatch.delenv("PRDP_OPERATOR")
    monkeypatch.setattr("getpass.getuser", nobody)
    assert operator_named(None).startswith("user ")
