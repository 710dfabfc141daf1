"""The choice of a Java, with Javas that are shell scripts, and the wheel's own."""

import subprocess
from pathlib import Path

import pytest

from pipeline.base.errors import PrdpError
from pipeline.engines import spark_session as java
from pipeline.engines.spark_session import DROPPED, java_home


def planted(home: Path, version: str) -> Path:
    """Write a Java that says it has `version`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o700)
    return home


def path_of(home: Path) -> dict[str, str]:
    return {"PATH": f"{home / 'bin'}:/nowhere"}


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, system = planted(tmp_path / "home", "17.0.1"), planted(tmp_path / "system", "21")
    assert java_home({"JAVA_HOME": str(home)} | path_of(system), tmp_path) == home


@pytest.mark.parametrize("version", ["17", "21.0.2", "25-ea"])
def test_the_system_comes_second_by_its_true_place(tmp_path: Path, version: str) -> None:
    system = planted(tmp_path / "system", version)
    (tmp_path / "link" / "bin").mkdir(parents=True)
    (tmp_path / "link" / "bin" / "java").symlink_to(system / "bin" / "java")
    assert java_home(path_of(tmp_path / "link"), tmp_path) == system


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_an_old_java_is_told_in_java_home_and_passed_over_on_the_path(tmp_path: Path, version: str) -> None:
    old = planted(tmp_path / "old", version)
    with pytest.raises(PrdpError, match=rf"^JAVA_HOME={old}: it holds Java (8|11|16); install Java 17 or newer, or"):
        java_home({"JAVA_HOME": str(old)}, tmp_path)
    assert java_home(path_of(old), tmp_path / "work") == tmp_path / "work" / "java"


def test_a_java_home_without_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(PrdpError, match="no Java runs at bin/java there; correct it, or unset it"):
        java_home({"JAVA_HOME": str(tmp_path)}, tmp_path)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel", lambda: None)
    with pytest.raises(PrdpError, match=r"^Spark needs Java: no Java was found; install Java 17 or newer, or run pip"):
        java_home({"PATH": "/nowhere"}, tmp_path)
    with pytest.raises(PrdpError, match=r"the only Java found, .*, is version 8; install"):
        java_home(path_of(planted(tmp_path / "old", "1.8.0_402")), tmp_path)


def test_the_wheel_comes_last_and_runs_with_what_spark_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's name"
    home = java_home({"PATH": "/nowhere"}, folder)
    run = [home / "bin" / "java", DROPPED, "-Dkept=two words", "-XshowSettings:properties", "-version"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "kept = two words" in done.stderr
    refused = subprocess.run([java._wheel(), DROPPED, "-version"], capture_output=True, text=True, check=False)
    assert refused.returncode  # were it not so, the wrapper would not be needed
