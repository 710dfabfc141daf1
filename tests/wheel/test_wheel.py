"""The wheel outside the repository, on each Python of this machine, and what was locked to build and run it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.needs import program, python_of
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements/release.txt", "requirements/all.txt", "conf/airflow/constraints.txt")
PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+)( ; [^\\]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+$", re.M)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]


def call(*words: object, code: int = 0, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=PATIENCE, **options
    )  # type: ignore[call-overload]
    assert done.returncode == code, done.stdout + done.stderr
    return done  # type: ignore[no-any-return]


def pinned(text: str) -> set[tuple[str, str]]:
    return {(pin["name"], pin["version"]) for pin in PIN.finditer(text)}


def test_locks_pin_every_package_with_hashes_and_name_no_host() -> None:
    texts = {name: (ROOT / name).read_text() for name in LOCKS}
    for text in texts.values():
        rest = [line for line in PIN.sub("", text).splitlines() if line and not line.startswith("#")]
        assert (rest, "://" in text) == ([], False)
    plain = set(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert pinned(texts["requirements/all.txt"]) == plain
    assert pinned(texts["requirements/release.txt"]) < plain
    assert PIN.sub("", "a==1 \\\n    --hash=md5:00\n") != ""  # the pattern is not content with anything


@pytest.mark.parametrize("name", ["udfs", "pipeline", "jobs"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_strangers_package_is_refused_by_name(tmp_path: Path, name: str, alone: bool) -> None:
    (tmp_path / name).mkdir()
    if alone:
        (tmp_path / name / "__init__.py").touch()
        stranger = tmp_path / name / "__init__.py"
    else:
        (tmp_path / name).rmdir()
        stranger = tmp_path / f"{name}.py"
        stranger.touch()
    own = "import sys; from prdp.command import main; sys.exit(main(['--version']))"
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = call(sys.executable, "-P", "-c", own, code=1, env=os.environ | path)
    assert done.stderr == f"error: the package {name} at {stranger} is not prdp's: take it off the Python path\n"
    if (name, alone) == ("udfs", True):
        done = call(sys.executable, "-P", "-c", own, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert done.stdout.startswith("prdp ")


# -- the drill ---------------------------------------------------------------------------------------------------------


def built(folder: Path) -> Path:
    """Build the wheel from a copy of what git tracks; return it."""
    source = folder / "source"
    names = call(program("git"), "-c", "safe.directory=*", "ls-files", "-z", cwd=ROOT).stdout.split("\0")[:-1]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    own = ("wheel", f"BIN={Path(sys.executable).parent}", "READY=", "CORE=", f"WORK={folder}")
    call(program("make"), "-s", *own, cwd=source)
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.mark.drill
def test_the_same_files_give_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert hashlib.sha256(built(tmp_path).read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


@pytest.mark.drill
def test_the_bill_of_materials_names_each_locked_package_with_its_hashes(tmp_path: Path) -> None:
    own = ("sbom", f"BIN={Path(sys.executable).parent}", "READY=")
    bills = []
    for name in ("one", "two"):
        call(program("make"), "-s", *own, f"WORK={tmp_path / name}", cwd=ROOT)
        bills.append((tmp_path / name / "dist" / "prdp.cdx.json").read_bytes())
    bill = json.loads(bills[0])
    assert bills[0] == bills[1]
    assert bill["metadata"]["component"]["name"] == "prdp"
    locked = pinned((ROOT / "requirements" / "release.txt").read_text())
    assert {(each["name"], each["version"]) for each in bill["components"]} == locked
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])


@pytest.mark.drill
@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_releases_and_verifies_without_the_repository(
    wheel: Path, tmp_path: Path, version: str, installer: str
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    call(python_of(version), "-m", "venv", tmp_path / "venv")
    install = (
        [program("uv"), "pip", "install", "-q", "--python", python]
        if installer == "uv"
        else [python, "-m", "pip", "install", "-q"]
    )
    call(*install, "--require-hashes", "-r", ROOT / "requirements" / "release.txt")
    call(*install, "--no-deps", wheel)
    prdp, options = (
        tmp_path / "venv" / "bin" / "prdp",
        {"cwd": tmp_path, "env": {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}},
    )
    call(prdp, "generate", "--records", 2000, "--out", "data", **options)
    call(prdp, "ledger", "create", "state/ledger.sqlite", **options)
    call(prdp, "release", "data/plan.yaml", "--out", "out", "--ledger", "state/ledger.sqlite", **options)
    assert "files match the manifest" in call(prdp, "verify", "out/cbp-synthetic", **options).stdout
    home = call(python, "-c", "import pipeline; print(pipeline.__file__)", **options).stdout
    assert home.startswith(str(tmp_path / "venv"))
    for name in ("udfs", "pipeline", "jobs"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "__init__.py").touch()
        path = {**options, "env": options["env"] | {"PYTHONPATH": str(tmp_path / "other")}}
        assert f"the package {name} at " in call(prdp, "verify", "out/cbp-synthetic", code=1, **path).stderr
        shutil.rmtree(tmp_path / "other" / name)
    (tmp_path / "other" / "conf").mkdir()  # is taken by its place beside prdp, whatever else has the name
    (tmp_path / "other" / "conf" / "__init__.py").touch()
    call(prdp, "generate", "--like", "cbp-2011", "--out", "alike", **path)
