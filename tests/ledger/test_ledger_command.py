"""`prdp ledger`: what officers read and do, at the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from jobs.cli import main
from pipeline.accounting.references import Names, Reference, typed_reference
from pipeline.ledger.store import create_ledger
from pipeline.release.officers import load_budget
from tests.support.ledgers import entries, ledger_file
from tests.support.world import MEASURES, budget_file, records, write_world

RELEASE = "small-release"
AT = "employment=10,payroll=500"  # a release of the small world loses 11.99374 here: 1/8 + 0.36893 + (ln 11)²/(2·¼)

Prdp = Callable[..., Any]


@pytest.fixture
def prdp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prdp:
    """Run the command with a ledger in `tmp_path`; return its JSON, or where a code is expected its one line."""

    def run(*arguments: object, code: int = 0) -> Any:
        ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
        assert main([*map(str, arguments), *ledger, "--json"]) == code, capsys.readouterr().err
        told = capsys.readouterr()
        if code:
            return [line for line in told.err.splitlines() if not line.startswith("[")][-1]
        return json.loads(told.out)

    return run


def release(prdp: Prdp, folder: Path, name: str, *options: str, code: int = 0) -> Any:
    return prdp("release", write_world(folder, None, release=name, budget=[]), *options, code=code)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_world(tmp_path, records(50))
    return tmp_path


# The day of an officer


def test_from_a_registered_dataset_to_a_withdrawal(prdp: Prdp, world: Path) -> None:
    shown = prdp("ledger", "init", "small-world", "--budget", budget_file(world), "--operator", "chief")
    assert shown["limits"] == [{"at": "employment=10, payroll=500", "rho": 20}]
    assert release(prdp, world, "first", "--hold")["state"] == "held"
    assert prdp("ledger", "approve", "first", "--operator", "chief")[0]["state"] == "settled"
    refused = release(prdp, world, "second", code=3)
    assert "requested rho 11.9938, spent 11.9938 by first 11.9938, limit 20;" in refused
    assert "the limit of dataset small-world" in refused
    prdp("ledger", "raise", "small-world", "--budget", budget_file(world, 30), "--reason", "a second table")
    assert release(prdp, world, "second", "--hold")["state"] == "held"
    assert prdp("ledger", "reject", "second", "--reason", "too thin")[0]["state"] == "rejected"
    assert prdp("ledger", "withdraw", "first", "--reason", "wrong codes")[0]["state"] == "withdrawn"
    (spending,) = prdp("ledger", "show", "--at", AT)
    assert [(each["release"], each["state"]) for each in spending["releases"]] == [
        ("first", "withdrawn"),
        ("second", "rejected"),
    ]
    assert spending["spent"] == pytest.approx(2 * 11.993785, rel=1e-5)
    assert spending["left"] == pytest.approx(30 - 2 * 11.993785, rel=1e-5)
    assert spending["limit"]["rho"] == 30
    assert all(0 <= share < 0.01 for each in spending["releases"] for share in each["excess"].values())
    assert all(each["excess"] for each in spending["releases"])
    first, second, budget, account = prdp("ledger", "show")
    (limit,) = account["limits"]
    assert (limit["spent"], limit["left"], limit["rho"]) == (spending["spent"], spending["left"], 30)
    assert (budget["dataset"], budget["reason"]) == ("small-world", "a second table")
    assert [act["event"] for act in first["acts"]] == [
        "reserved",
        "tested",
        "drawn",
        "held",
        "approved",
        "published",
        "settled",
        "withdrawn",
    ]
    assert {act["operator"] for act in first["acts"] if act["event"] == "approved"} == {"chief"}
    assert [attempt["stage"] for attempt in (*first["attempts"], *second["attempts"])] == ["withdrawn", "rejected"]
    verified = prdp("ledger", "verify", "--manifests")
    assert verified["releases"] == ["first"]


def test_the_tables_are_for_people(prdp: Prdp, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prdp("ledger", "init", "small-world", "--budget", budget_file(world))
    release(prdp, world, "first", "--hold", "--operator", "night run")
    ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
    assert main(["ledger", "show", *ledger]) == 0
    title, header, row, heads, limit = lines = capsys.readouterr().out.splitlines()
    assert title == "dataset small-world, unit record"
    assert header.split() == ["release", "state", "draws", "charged", "since", "by"]
    assert row.split()[:4] == ["first", "held", "1", "1"]
    assert row.endswith("night run")
    assert header.index("state") == row.index("held")
    assert heads.split()[-3:] == ["limit", "spent", "left"]
    assert limit.split() == ["employment=10,", "payroll=500", "20", "11.9938", "8.00621"]
    assert max(map(len, lines)) <= 80
    assert main(["ledger", "show", "--at", AT, *ledger]) == 0
    text = capsys.readouterr().out
    assert ["spent", "11.9938"] in [line.split() for line in text.splitlines()]
    assert "left 8.00621, by the limit 20 at employment=10, payroll=500" in text
    assert main(["ledger", "show", "first", *ledger]) == 0
    assert "draw 1: held" in capsys.readouterr().out
    assert main(["ledger", "verify", *ledger]) == 0
    assert "entries is complete" in capsys.readouterr().out
    assert main(["ledger", "staging", "purge", *ledger]) == 0
    assert "nothing is staged" in capsys.readouterr().out


def test_a_manifest_is_held_against_the_chain(prdp: Prdp, world: Path) -> None:
    release(prdp, world, "first")
    folder = world / "releases" / "first"
    assert prdp("ledger", "verify", "--release", folder)["releases"] == ["first"]
    manifest = json.loads((folder / "release.json").read_text())
    (folder / "release.json").write_text(json.dumps(manifest | {"ledger_head": "0" * 64}))
    for option in (["--release", folder], ["--manifests"]):
        assert "cut or rewritten" in prdp("ledger", "verify", *option, code=5)


def test_what_is_left_at_a_smaller_record_is_what_the_limit_leaves(prdp: Prdp, world: Path) -> None:
    prdp("ledger", "init", "small-world", "--budget", budget_file(world))
    release(prdp, world, "first")
    (smaller,) = prdp("ledger", "show", "--at", "employment=10,payroll=0")
    (same,) = prdp("ledger", "show", "--at", AT)
    (larger,) = prdp("ledger", "show", "--at", "employment=10,payroll=501")
    assert smaller["spent"] < same["spent"] < larger["spent"]
    assert smaller["left"] == same["left"]
    assert (larger["left"], larger["limit"]) == (None, None)
    assert prdp("ledger", "show", "--at", "employment=10")[0] == same | {"assumed": {"payroll": 500}}
    assert "must also name payroll" in prdp("ledger", "show", "--at", "employment=11", code=2)
    assert "give one, without ;" in prdp("ledger", "show", "--at", f"{AT};{AT}", code=2)
    assert "nearest known: employment" in prdp("ledger", "show", "--at", "employmint=10", code=5)
    assert "dataset other: is not in the ledger" in prdp("ledger", "show", "--dataset", "other", "--at", AT, code=5)


def test_a_family_is_registered_and_shown(prdp: Prdp, world: Path) -> None:
    kin = world / "family.yaml"
    kin.write_text(
        yaml.safe_dump({"unit": "record", "limits": [{"at": {"employment": 10, "payroll": 500}, "rho": 13}]})
    )
    assert prdp("ledger", "init", "economy", "--budget", kin)["kind"] == "family"
    prdp("ledger", "init", "small-world", "--budget", budget_file(world, 100, family="economy"))
    release(prdp, world, "first")
    (spending,) = prdp("ledger", "show", "--at", AT)
    assert "family economy" in spending["limit"]["at"]
    assert "the limit of family economy" in release(prdp, world, "second", code=3)


# Files and calls that are wrong


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"limits": []}, "limits: must not be empty"),
        ({"limit": 3}, "limit: unknown key; nearest known key: limits"),
        ({"dataset": {"name": "other"}}, "dataset.name: must be small-world"),
        ({"limits": [{"at": {"naics2": "44-45"}, "rho": 1}]}, "limits[0].at.naics2: must be a number"),
        ({"limits": [{"at": {"sales": 1}, "rho": 1}]}, "limits[0].at.sales: unknown measure"),
        ({"limits": [{"at": [{"payroll": 1}], "rho": 1}]}, "limits[0].at: must be a mapping"),
    ],
)
def test_a_wrong_budget_file_is_told(prdp: Prdp, world: Path, changes: dict[str, Any], told: str) -> None:
    assert told in prdp("ledger", "init", "small-world", "--budget", budget_file(world, **changes), code=2)


def test_the_files_of_the_officers_page_are_budget_files(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    dataset, family, _ = (part.split("```")[0] for part in page.split("```yaml\n")[1:])
    for text, name in ((dataset, "cbp-2023"), (family, "cbp")):
        (tmp_path / "budget.yaml").write_text(text)
        found = load_budget(tmp_path / "budget.yaml", name)
        assert (found.unit, found.limits[0].label) == ("record", "employment=10, payroll=500")


def test_wrong_acts_are_refused(prdp: Prdp, world: Path) -> None:
    empty = world / "empty.yaml"
    empty.write_text("limits: []\n")
    assert "missing key dataset" in prdp("ledger", "init", "small-world", "--budget", empty, code=2)
    assert "begin with prdp ledger init" in prdp(
        "ledger", "raise", "small-world", "--budget", budget_file(world), "--reason", "x", code=5
    )
    assert "a reason of 1 to" in prdp("ledger", "reject", "r", "--reason", " ", code=2)
    assert "not in the ledger" in prdp("ledger", "approve", "r", code=5)
    assert "not in the ledger" in prdp("ledger", "withdraw", "r", "--reason", "x", code=5)
    assert "not in the ledger" in prdp("ledger", "staging", "purge", "r", code=5)
    prdp("ledger", "init", "small-world", "--budget", budget_file(world))
    moved = {"measures": {**MEASURES, "payroll": {"column": "wages", "type": "decimal", "step": 1}}}
    other = budget_file(world, dataset=moved)
    assert "payroll.column is payroll in the ledger, but wages" in prdp(
        "ledger", "raise", "small-world", "--budget", other, "--reason", "x", code=5
    )
    write_world(world / "elsewhere", records(5))
    elsewhere = world / "elsewhere" / "microdata"
    assert "its source is" in prdp("release", world / "plan.yaml", "--data", elsewhere, code=5)


# A firm's reference


def test_a_firms_limit_binds_firms_whose_records_are_matched() -> None:
    def firm(text: str) -> Reference:
        return typed_reference("--at", text, Names(["employment", "payroll"]), listed=True)

    limit = firm("employment=10,payroll=500;employment=20,payroll=100")
    assert limit.covers(firm("employment=20,payroll=100"))
    assert limit.covers(firm("employment=5,payroll=50;employment=10,payroll=500"))
    assert not limit.covers(firm("employment=10,payroll=500;employment=10,payroll=500"))
    assert not limit.covers(firm("employment=1,payroll=1;employment=1,payroll=1;employment=1,payroll=1"))


def test_firms_have_budgets_and_spending(prdp: Prdp, tmp_path: Path) -> None:
    owned = records(50).append_column("firm_id", pa.array([f"F{i % 7}" for i in range(50)]))
    firm = [{"employment": 10, "payroll": 500}, {"employment": 20, "payroll": 900}]
    changes = {"dataset": {"unit": "firm_id"}, "limits": [{"at": firm, "rho": 50}]}
    write_world(tmp_path, owned)
    prdp("ledger", "init", "small-world", "--budget", budget_file(tmp_path, **changes))
    for name, code in (("first", 0), ("second", 3)):
        path = write_world(tmp_path, None, release=name, budget=[], dataset={"unit": "firm_id"})
        told = prdp("release", path, code=code)
    assert "the limit of dataset small-world" in told
    (both,) = prdp("ledger", "show", "--at", "employment=10,payroll=500;employment=20,payroll=900")
    (one,) = prdp("ledger", "show", "--at", "employment=10,payroll=500")
    (three,) = prdp("ledger", "show", "--at", ";".join(["employment=1,payroll=1"] * 3))
    assert one["spent"] < both["spent"] <= 50
    assert one["left"] == both["left"] == pytest.approx(50 - both["spent"], abs=1e-9)
    assert three["left"] is None
    assert both["at"] == firm


# Export


def test_the_export_holds_every_entry_and_nothing_confidential(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
    assert main(["release", str(world / "plan.yaml"), *ledger]) == 0
    capsys.readouterr()
    assert main(["ledger", "export", *ledger]) == 0
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    known = entries(create_ledger(ledger[1]))
    assert [(line["seq"], line["event"], line["hash"]) for line in lines] == [(e.seq, e.event, e.hash) for e in known]
    pins = {entry.facts["pin"] for entry in known if "pin" in entry.facts}
    assert pins
    for secret in (*pins, *(entry.salt for entry in known), str(world / "microdata")):
        assert secret not in text
    assert [line["withheld"] for line in lines if line["event"] == "drawn"] == [["salt", "pin"]]
    assert lines[0]["facts"]["plan"] == known[0].facts["plan"]
    assert main(["ledger", "export", "--confidential", *ledger]) == 0
    whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["confidential"] for line in whole)
    assert [(line["salt"], line["payload"]) for line in whole] == [(e.salt, e.payload) for e in known]


@pytest.mark.parametrize("act", [["verify"], ["export"], ["migrate"], ["staging", "purge"]])
def test_the_default_ledger_is_not_found_to_be_well_before_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], act: list[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["ledger", *act]) == 5
    assert "ledger.sqlite is not there" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
