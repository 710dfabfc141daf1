"""Nothing confidential is written into a public folder, and nothing public into a confidential one."""

import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.store import create_ledger
from pipeline.storage.local import LocalPath
from pipeline.storage.paths import CONFIDENTIAL_MARKS, PUBLIC_MARKS, require_not_in
from pipeline.storage.staging import MANIFEST
from tests.support.ledgers import ledger_file
from tests.support.store import Store
from tests.support.world import records, write_world

RELEASE = "small-release"
FORMATS = ("csv", "delta")
PUBLIC = ("releases/small-release", "reconciled", "derived", "product", "site", *FORMATS)
CONFIDENTIAL = ("prepared", "diagnostics", "state/staging")
INTO_PUBLIC = {  # every command that writes something confidential, and where to
    "check": "check {plan} --report {at}/new.txt",
    "check, no suffix": "check {plan} --report {at}/a/new",
    "diagnose": "diagnose {plan} --out {at}/new",
    "prepare": "prepare {raw} --plan {plan} --out {at}/new",
    "page": "ledger page --out {at}/new.html",
    "ledger": "ledger create {at}/new/ledger.sqlite",
    "staging": "release {next} --staging {at}/new --out {out}",
    "ledger check": "ledger check {next} --staging {at}/new --out {out}",
    "metrics": "release {next} --metrics {at} --out {out}",
    "keys": "keys create {at}/new.key",
}
INTO_CONFIDENTIAL = {
    "site": "site {release} --out {at}/new",
    "reconcile": "reconcile {release} --out {at}/new",
    "product": "product {release} --product {product} --out {at}/new",
    "export": "export {release} --to csv --out {at}/new",
    "derive": "derive {release} --total establishments --since {earlier} --out {at}/new",
    "release": "release {next} --out {at}/new",
}
PRODUCT = {
    "product": "small",
    "title": "Small",
    "levels": {"naics6": {"meaning": "Industry"}, "county": {"meaning": "County"}},
    "measures": {"firms": {"meaning": "Establishments", "unit": "establishments"}},
    "basic": {"round": 1, "withhold_from": 50},
    "tables": [{"name": "small", "values": {"firms": "establishments"}}],
}


class Made:
    """A folder with one folder of every kind that prdp makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plan = write_world(folder / "world", records(60))
        product = folder / "product.yaml"
        for name in ("earlier", "next"):
            changed = yaml.safe_load(plan.read_text()) | {"release": name}
            plan.with_name(f"{name}.yaml").write_text(yaml.safe_dump(changed))
        product.write_text(yaml.safe_dump(PRODUCT))
        self.ledger = ["--ledger", ledger_file(folder / "state" / "ledger.sqlite")]
        self.names = {
            "plan": plan,
            "next": plan.with_name("next.yaml"),
            "raw": plan.parent / "microdata",
            "release": folder / "releases" / RELEASE,
            "earlier": folder / "releases" / "earlier",
            "out": folder / "others",
            "product": product,
        }
        for call in (
            "release {plan} --out {folder}/releases",
            f"release {plan.with_name('earlier.yaml')} --out {{folder}}/releases",
            "reconcile {release} --out {folder}/reconciled",
            "derive {release} --total establishments --since {earlier} --out {folder}/derived",
            "product {release} --product {product} --out {folder}/product",
            "site {release} --out {folder}/site",
            "prepare {raw} --plan {plan} --out {folder}/prepared",
            "diagnose {plan} --out {folder}/diagnostics",
            *(f"export {{release}} --to {to} --out {{folder}}/{to}" for to in FORMATS),
        ):
            assert self.call(call) == 0, call

    def call(self, words: str, **names: object) -> int:
        """Run a command; return its exit code."""
        call = words.format(**{**self.names, "folder": self.folder, **names}).split()
        own = call[0] in ("release", "check", "diagnose", "prepare")
        own |= call[0] == "ledger" and call[1] != "create"
        return main([*call, *(self.ledger if own else [])])

    def files(self, folder: Path) -> list[Path]:
        """All that lies in a folder."""
        return sorted(folder.rglob("*"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


def places(made: Made, public: str, tmp_path: Path) -> list[Path]:
    """The folder, one below it, and both by a link that leads into it and by one that lies in it."""
    folder = made.folder / public
    below = next((path for path in folder.rglob("*") if path.is_dir()), folder / "new")
    link = tmp_path / "link"
    link.symlink_to(below if below.is_dir() else folder)
    return [folder, below, folder / "not" / "there", link]


def into(folders: Sequence[str], commands: Sequence[str]) -> list[Any]:
    """Each command and the first folder, and each folder and the first command; all pairs in the drill."""
    few = {
        (folder, command)
        for folder, command in product(folders, commands)
        if folder == folders[0] or command == commands[0]
    }
    return [pytest.param(*pair, marks=() if pair in few else pytest.mark.drill) for pair in product(folders, commands)]


@pytest.mark.parametrize(("public", "command"), into(PUBLIC, list(INTO_PUBLIC)))
def test_nothing_confidential_is_written_into_a_public_folder(
    made: Made, public: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.folder / public
    before = made.files(folder)
    for at in places(made, public, tmp_path):
        assert made.call(INTO_PUBLIC[command], at=at) == 5
        assert "it lies in" in capsys.readouterr().err
        assert made.files(folder) == before
    assert create_ledger(made.ledger[1]).state("next") is None  # nothing was reserved


@pytest.mark.parametrize(("private", "command"), into(CONFIDENTIAL, list(INTO_CONFIDENTIAL)))
def test_nothing_public_is_written_into_a_confidential_folder(
    made: Made, private: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.folder / private
    before = made.files(folder)
    for at in places(made, private, tmp_path):
        assert made.call(INTO_CONFIDENTIAL[command], at=at) == 5
        said = capsys.readouterr().err
        assert "it lies in" in said or "overlap" in said
        assert made.files(folder) == before


def test_a_link_that_lies_in_a_public_folder_is_a_part_of_it(made: Made, tmp_path: Path) -> None:
    """A server of the folder follows it."""
    site = tmp_path / "site"
    shutil.copytree(made.folder / "site", site)
    (tmp_path / "private").mkdir()
    (site / "link").symlink_to(tmp_path / "private")
    assert made.call(INTO_PUBLIC["check"], at=site / "link") == 5
    assert not list((tmp_path / "private").iterdir())


def test_beside_a_public_folder_is_none(made: Made, tmp_path: Path) -> None:
    """The twin: a plan's own folder holds both kinds beside each other; releases alone are published beside others."""
    shutil.copytree(made.folder / "site", tmp_path / "site")
    assert made.call("check {plan} --report {at}/report.txt", at=tmp_path) == 0
    assert made.call("check {plan} --report {at}/report.txt", at=made.folder / "releases") == 5


def test_marks_count_at_every_depth_also_of_a_store(store: Store, tmp_path: Path) -> None:
    for whole, mark in product((store.bucket(), LocalPath(tmp_path)), (*PUBLIC_MARKS, *CONFIDENTIAL_MARKS)):
        root = whole / f"beside {mark}"
        folder = root / "a" / "b"
        if not folder.remote:
            folder.make_folder()
        (folder / mark).write(b"{}")
        for at in (folder, folder / "c", folder / "c" / "d"):
            with pytest.raises(StateError, match="it lies in"):
                require_not_in({**PUBLIC_MARKS, **CONFIDENTIAL_MARKS}, at)
        for at in (root, root / "a", root / "a" / "c"):
            require_not_in({**PUBLIC_MARKS, **CONFIDENTIAL_MARKS}, at)


def test_staging_in_a_stores_public_folder_is_refused(store: Store, made: Made) -> None:
    bucket = store.bucket()
    (bucket / "public" / MANIFEST).write(b"{}")
    at = store.uri(bucket.authority, "public/staging")
    assert made.call("release {next} --staging {at} --out {out}", at=at) == 5
    assert (bucket / "public").children() == [MANIFEST]
