"""What a checkout holds, how CI tests it, and how tests run on machines that are busy or lack a program."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.needs import program

ROOT = Path(__file__).parents[1]
TOP = {
    *(".ci", ".dockerignore", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile"),
    *("README.md", "SECURITY.md", "benchmarks", "box", "conf", "constraints.txt", "docker-compose.yml", "docs", "jobs"),
    *("mkdocs.yml", "mkdocs_links.py", "pipeline", "prdp", "pyproject.toml", "requirements", "tests", "udfs"),
}
PLAIN = re.compile(r"[A-Za-z0-9._/-]+|conf/systemd/[a-z-]+@\.(service|timer)")  # systemd's templates have an @


def odd(names: list[str]) -> list[str]:
    """Return the files that lie where none should, or whose names a slip of the shell made."""
    return [name for name in names if name.partition("/")[0] not in TOP or not PLAIN.fullmatch(name)]


def test_the_root_holds_what_is_listed_and_no_file_has_an_odd_name() -> None:
    call = [program("git"), "-c", "safe.directory=*", "ls-files", "-z"]
    names = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    assert odd(names) == []
    assert {name.partition("/")[0] for name in names} == TOP
    assert odd([*names, "hole, 1)", "a.out", "docs/=2"]) == ["hole, 1)", "a.out", "docs/=2"]


def test_no_example_of_hypothesis_fails_because_it_is_slow() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    others = (path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", Path(__file__).name))
    texts = {path: path.read_text() for path in others}
    assert [path for path, text in texts.items() if "deadline=" in text] == []
    own = re.compile(r"suppress_health_check=(?!\[HealthCheck\.too_slow)")
    assert [path for path, text in texts.items() if own.search(text)] == []


def test_a_missing_program_fails_in_ci_and_is_a_skip_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program("nowhere", "sh").endswith("/sh")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="chromium is not installed: in CI nothing is skipped"):
        program("chromium", "google-chrome")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="chromium is not installed"):
        program("chromium")


@pytest.mark.parametrize(("user", "there"), [("0", ()), ("0", ("google-chrome",)), ("1000", ())])
def test_ci_installs_what_is_missing_where_it_may_and_runs_the_tests_last(
    tmp_path: Path, user: str, there: tuple[str, ...]
) -> None:
    for name in ("apt-get", "make", *there):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" CI=$CI >> {tmp_path}/calls\n')
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    (tmp_path / "dirname").symlink_to(program("dirname"))
    bash = program("bash")
    environment = {name: text for name, text in os.environ.items() if name != "CI"} | {"PATH": str(tmp_path)}
    subprocess.run([bash, ROOT / ".ci" / "run"], env=environment, check=True, capture_output=True)
    programs = {"chromium", "cron", "fish", "git", "logrotate", "systemd", "zsh"}
    wanted = " ".join(sorted(programs - ({"chromium"} if there else set())))
    installs = ["apt-get update", f"apt-get install --yes --no-install-recommends {wanted}"] if user == "0" else []
    calls = [*installs, "make lint", "make test"]
    assert (tmp_path / "calls").read_text().splitlines() == [f"{call} CI=true" for call in calls]


def test_cleaning_keeps_the_ledger_and_what_it_published(tmp_path: Path) -> None:
    for name in (".venv", ".work/data", ".work/ledger/staging", ".work/releases", ".work/docs", ".work/.hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".work/ledger/ledger.sqlite").touch()
    for _ in range(2):
        subprocess.run([program("make"), "-f", ROOT / "Makefile", "clean"], cwd=tmp_path, check=True)
        assert {path.name for path in tmp_path.iterdir()} == {".work"}
        assert {path.name for path in (tmp_path / ".work").iterdir()} == {"ledger", "releases"}
    assert (tmp_path / ".work/ledger/ledger.sqlite").exists()
    assert (tmp_path / ".work/ledger/staging").exists()
    (tmp_path / "new").mkdir()
    subprocess.run([program("make"), "-f", ROOT / "Makefile", "clean"], cwd=tmp_path / "new", check=True)
