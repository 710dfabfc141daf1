"""Attack: a name that a plan or a call holds asks whether a part of a registered dataset's microdata is there.

Each command is run for a part that is there and for one that is not. Exit code, output and messages are equal byte by
byte, but for the name itself: `m/county=01003/` and `m/county=01005/` would tell where establishments are.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from tests.support.world import NAICS, budget_file, plan, records, write_codes, write_world

DATA = "microdata"
PARTS = {  # of the microdata in folders by county: one that is there, one that is not
    "a partition": (f"{DATA}/county=01003", f"{DATA}/county=01005"),
    "a slash": (f"{DATA}/county=01003/", f"{DATA}/county=01005/"),
    "a file": (f"{DATA}/county=01003/part-0.parquet", f"{DATA}/county=01005/part-0.parquet"),
    "dots": (f"domain/../{DATA}/county=01003/.", f"domain/../{DATA}/county=01005/."),
    "below a file": (f"{DATA}/county=01003/part-0.parquet/x", f"{DATA}/county=01005/part-0.parquet/x"),
    "a URI": (f"file://{{}}/{DATA}/county=01003", f"file://{{}}/{DATA}/county=01005"),
    "a link": ("to-01003", "to-01005"),
    "a version": (f"{DATA}/county=01003@v0", f"{DATA}/county=01005@v0"),
    "a link inside": (f"{DATA}/linked-1.parquet", f"{DATA}/linked-2.parquet"),
    "a circle": (f"{DATA}/circle", f"{DATA}/circus"),
    "wild cards": (f"{DATA}/county=0100[3]", f"{DATA}/county=0100[5]"),
    "an industry": ("prepared/naics3-311.parquet", "prepared/naics3-999.parquet"),
}
FEW = ("a partition", "a link")
COMMANDS = {
    "release": "release {plan}",
    "release elsewhere": "release plan.yaml --data {at}",
    "ledger check": "ledger check {plan}",
    "ledger check elsewhere": "ledger check plan.yaml --data {at}",
    "check": "check {plan}",
    "check elsewhere": "check plan.yaml --data {at}",
    "diagnose": "diagnose {plan} --out diagnosed",
    "diagnose elsewhere": "diagnose plan.yaml --data {at} --out diagnosed",
    "prepare": "prepare {at} --plan plan.yaml --out made",
    "try": "try plan.yaml --sizes {at} --declared-public-by me",
    "suppression": "evaluate --suppression {plan} --out study",
    "another dataset": "release {other}",
    "explain": "explain {plan}",
}
PUBLIC = {  # where a plan names a public file
    "a list": ("explain", {"domain": {"naics": "{at}", "county": "domain/counties.csv"}}),
    "cells": ("explain", {"domain": {"cells": "{at}"}}),
    "a list, elsewhere": ("explain", {"domain": {"naics": "{at}", "county": "domain/counties.csv"}, "path": "else"}),
    "a list of a draft": ("calibrate", {"domain": {"naics": "{at}", "county": "domain/counties.csv"}, "calibrate": {}}),
    "a list of a release": ("release", {"domain": {"naics": "{at}", "county": "domain/counties.csv"}}),
    "a designed noise": ("explain", {"mechanism": {"kind": "designed", "weights": "{at}"}}),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registered dataset in folders by county, a registered prepared folder, and links."""
    folder = tmp_path_factory.mktemp("doors")
    write_world(folder, None)
    table = records(200).to_pandas()
    for county, rows in table[table["county"] != "01005"].groupby("county"):
        (folder / DATA / f"county={county}").mkdir(parents=True)
        rows.drop(columns="county").to_parquet(folder / DATA / f"county={county}" / "part-0.parquet")
    (folder / "to-01003").symlink_to(folder / DATA / "county=01003")
    (folder / "to-01005").symlink_to(folder / DATA / "county=01005")
    (folder / "pool").mkdir()
    pq.write_table(records(5, first=900), folder / "pool" / "linked.parquet")
    (folder / DATA / "linked-1.parquet").symlink_to(folder / "pool" / "linked.parquet")
    (folder / DATA / "circle").symlink_to("circle")
    raw = folder / "raw"
    raw.mkdir()
    pq.write_table(records(200, first=2000), raw / "part-0.parquet")
    address = ["--ledger", str(folder / "ledger.db")]
    assert main(["ledger", "create", str(folder / "ledger.db")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        of_prepared = {"name": "of-prepared", "path": "prepared"}
        write_world(folder, None, dataset=of_prepared).rename(folder / "prepared.yaml")
        assert main(["prepare", "raw", "--plan", "prepared.yaml", "--out", "prepared", *address]) == 0
        for name, dataset in (("small-world", {}), ("of-prepared", of_prepared)):
            budget = budget_file(folder, dataset=dataset)
            assert main(["ledger", "init", name, "--budget", str(budget), *address]) == 0
        write_world(folder, None)
    shutil.copytree(folder / "prepared", folder / "copy")  # of which no ledger knows
    assert (folder / "prepared" / "naics3-311.parquet").is_file()
    return folder


@pytest.fixture(autouse=True)
def there(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(world)
    before = set(world.iterdir())
    yield
    for path in set(world.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def answer(command: str, at: str, capsys: pytest.CaptureFixture[str], ledger: str = "ledger.db") -> tuple[int, str]:
    """What a command says, without the name of the part and how long it took."""
    capsys.readouterr()
    options = [] if command.startswith(("explain", "calibrate")) else ["--ledger", ledger]
    code = main([*command.split(), *options])
    said = re.sub(r"\[ *[0-9.]+ s\]", "", "\0".join(capsys.readouterr()))
    names = {at, at.rstrip("/"), os.path.abspath(at), os.path.basename(at.rstrip("/"))}
    for name in (*sorted(names, key=len, reverse=True), "county=01003", "county=01005"):
        said = said.replace(name, "PART")
    return code, said


def written(name: str, changes: dict[str, object]) -> str:
    """Write a plan beside the world's."""
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(plan(**changes), sort_keys=False))
    return path.name


def asked() -> list[Any]:
    """Every command about a partition and a link, and one about every part, in every run; the rest in the drill."""
    few = {(command, part) for command, part in product(COMMANDS, PARTS) if part in FEW or command == "check elsewhere"}
    return [pytest.param(*each, marks=() if each in few else pytest.mark.drill) for each in product(COMMANDS, PARTS)]


@pytest.mark.parametrize(("command", "part"), asked())
def test_no_command_says_whether_a_part_is_there(
    command: str, part: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for at in (each.format(world) for each in PARTS[part]):
        named = written("named", {"dataset": {"path": at}})
        other = written("other", {"dataset": {"path": at, "name": "other"}, "release": "another"})
        answers.append(answer(COMMANDS[command].format(plan=named, at=at, other=other), at, capsys))
    assert answers[0] == answers[1]
    assert (answers[0][0] != 0) == (command != "explain")


@pytest.mark.parametrize(
    ("named", "part"),
    [
        (named, part)
        for named, (_, changes) in PUBLIC.items()
        for part in ("a partition", "a file", "dots", "a circle", "a link inside")
        if "path" not in changes or part not in ("a circle", "a link inside")  # of other microdata names alone tell
    ],
)
def test_no_public_file_of_a_plan_is_looked_for_in_microdata(
    named: str, part: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, changes = PUBLIC[named]
    answers = []
    for at in PARTS[part]:
        made = yaml.safe_load(yaml.safe_dump(changes).replace("{at}", at))
        if "mechanism" in made:
            made["queries"] = [plan()["queries"][0] | {"mechanism": made.pop("mechanism")}]
        if "path" in made:
            made["dataset"] = {"path": made.pop("path")}
        answers.append(answer(f"{command} {written('named', made)}", at, capsys))
    assert answers[0] == answers[1]
    assert answers[0][0] == 2


def test_dots_behind_a_part_ask_nothing(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`m/x/../../list.csv` names list.csv, whether or not there is m/x."""
    for part in ("county=01003", "county=01005"):
        for behind in (f"{DATA}/{part}/../../domain/naics.csv", f"{DATA}/31/../../domain/naics.csv"):
            domain = {"naics": behind, "county": "domain/counties.csv"}
            code = answer(f"explain {written('named', {'domain': domain})}", behind, capsys)[0]
            assert code == (2 if "=" in behind else 0)


@pytest.mark.parametrize("command", ["release", "check", "diagnose", "prepare", "try"])
def test_a_file_of_a_prepared_folder_that_is_not_registered(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for at in ("copy/naics3-311.parquet", "copy/naics3-999.parquet"):
        other = written("other", {"dataset": {"path": at, "name": "other"}, "release": "another"})
        answers.append(answer(COMMANDS[command].format(plan=other, at=at), at, capsys))
    assert answers[0] == answers[1]
    assert answers[0][0] == 2


def test_the_python_interface(world: Path) -> None:
    ledger = prdp.open_ledger(world / "ledger.db")
    calls: list[Callable[[str], object]] = [
        lambda at: prdp.load_plan("plan.yaml").release(at, ledger=ledger),
        lambda at: prdp.load_plan("plan.yaml").check(at, ledger=ledger),
        lambda at: prdp.load_plan("plan.yaml").check_microdata(Path(at), ledger=ledger),
        lambda at: prdp.diagnose("plan.yaml", "diagnosed", at, ledger=ledger),
    ]
    for call in calls:
        said = []
        for at in PARTS["a partition"]:
            with pytest.raises(prdp.StateError) as error:
                call(at)
            said.append(str(error.value).replace(os.path.abspath(at), "PART"))
        assert said[0] == said[1]


def test_the_twin_that_looks_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    """What is compared tells the parts apart where the ledger knows of no dataset there."""
    assert main(["ledger", "create", "fresh.db"]) == 0
    named = [written(f"named-{n}", {"dataset": {"path": at}}) for n, at in enumerate(PARTS["a partition"])]
    one, other = (
        answer(f"check {name}", at, capsys, "fresh.db") for name, at in zip(named, PARTS["a partition"], strict=True)
    )
    assert one != other
    assert (one[0], other[0]) == (0, 2)


def test_frames_and_other_names_are_as_before(world: Path) -> None:
    ledger = prdp.open_ledger(world / "ledger.db")
    with pytest.raises(prdp.StateError, match="its source is"):
        prdp.load_plan("plan.yaml").release(pd.DataFrame(records(20).to_pandas()), ledger=ledger)
    write_codes(world / "domain" / "again.csv", NAICS)
    domain = {"naics": "domain/again.csv", "county": "domain/counties.csv"}
    assert prdp.load_plan(plan(domain=domain), folder=world).digest == prdp.load_plan(world / "plan.yaml").digest
