"""Files of a release that somebody changed together with its manifest: each command ends in a plain line."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from pipeline.base.errors import PrdpError
from prdp import read_release
from tests.support.ledgers import ledger_file
from tests.support.submit import Place, released
from tests.support.world import records, write_world

RELEASE = "small-release"
COMMANDS = (
    ["export", "{release}", "--to", "csv", "--out", "{out}"],
    ["export", "{release}", "--to", "xlsx", "--out", "{out}"],
    ["reconcile", "{release}", "--out", "{out}"],
    ["product", "{release}", "--out", "{out}"],
    ["site", "{release}", "--out", "{out}"],
)
JSON = ("policy.json", "structure.json", "datapackage.json", "site/metadata.json")
WRONG = (b"{}", b"[]", b"no JSON", b'{"queries": [{}], "tables": [{"name": 1}], "resources": [{"name": "x"}]}')


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("released")
    released(write_world(folder, records(50)), folder)
    return Place(folder / "plan.yaml", folder)


def forged(place: Place, folder: Path, change: Callable[[Path], None], name: str) -> Path:
    """A copy of the release with a file that was changed, and a manifest that says so."""
    release = folder / RELEASE
    shutil.copytree(place.out / RELEASE, release)
    manifest = json.loads((release / "release.json").read_text())
    path = f"{manifest['attempt']}/{name}"
    change(release / path)
    data = (release / path).read_bytes()
    for file in (*manifest["files"], *(each for table in manifest["tables"] for each in table["files"])):
        if file["path"] == path:
            file |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (release / "release.json").write_text(json.dumps(manifest))
    assert main(["verify", str(release)]) == 0  # who changes both is told from its publisher by the ledger's head alone
    return release


def require_plain(release: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    codes = []
    for number, words in enumerate(COMMANDS):
        capsys.readouterr()
        codes.append(main([word.format(release=release, out=out / str(number)) for word in words]))
        told = capsys.readouterr().err
        assert "unexpected" not in told, (words, told)
        assert codes[-1] in (0, 2, 5), (words, told)
    return codes


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", JSON)
def test_a_document_that_is_none(
    place: Place, tmp_path: Path, name: str, wrong: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    release = forged(place, tmp_path, lambda path: path.write_bytes(wrong), name)  # type: ignore[func-returns-value]
    assert set(require_plain(release, tmp_path, capsys)) != {0}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def without_values(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["value"]), path)


def of_other_types(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.table({name: [["x"]] * len(table) for name in table.column_names}), path)


@pytest.mark.parametrize("change", [cut, damage, without_values, of_other_types])
def test_a_table_that_is_none(
    place: Place, tmp_path: Path, change: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest: Any = json.loads((place.out / RELEASE / "release.json").read_text())
    (first, *_) = manifest["tables"]
    release = forged(place, tmp_path, change, first["files"][0]["path"].partition("/")[2])
    assert set(require_plain(release, tmp_path, capsys)) != {0}
    if change in (cut, damage):
        with pytest.raises(PrdpError, match="is not as prdp writes it"):
            read_release(release).arrow(first["query"])


def test_a_published_file_that_is_damaged_is_told_by_the_next_release(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["release", str(place.plan), "--out", str(place.out), "--ledger", ledger_file(place.ledger_path)]
    assert main(call) == 0
    file = next((place.out / RELEASE).glob("*/tables/*/part-00000.parquet"))
    whole = file.read_bytes()
    for change, words in ((damage, "differs from the manifest"), (Path.unlink, "cannot be read: No such file")):
        change(file)
        capsys.readouterr()
        assert main(call) == 5
        assert words in capsys.readouterr().err
        file.write_bytes(whole)
