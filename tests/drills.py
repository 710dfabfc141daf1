"""The longer drills in parts that can be resumed, and when each last ran: `make drill`, `make drill-status`.

    python -m tests.drills [--status] [--again] [PART]…

A part is a folder of tests, of which it runs what `make test` leaves out, the suite's fast half on another Python, or
some faults of tests/faults on one engine. Long folders are cut into shares by their files, attacks by their tests.
A name with more than one share, such as `faults` or `attacks`, means all of them.
Without a name all parts are run that did not pass on these files: prdp, what all tests share, and the part's own tests,
not those of other parts. As many run at once as there are processors, those first that took longest. Results stand in
tests/drills.json, with commit, date and machine. The exit code is 0 where every part that was asked for passed on these
files, 1 where one did not, 2 where none has the name.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.table import FAULTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "drills.json"
SHARES = {"accounting": 2, "attacks": 16, "engines": 3, "jobs": 3, "microdata": 2, "planning": 2}  # of long folders
FAULTS_OF_A_PART = {"dask": 35, "dask cluster": 9, "spark": 9, "spark cluster": 8, "airflow": 2}
PYTHONS = ("3.12", "3.13", "3.14")  # beside the one that runs the suite
PYTEST = ("-m", "pytest", "-q", "-p", "tests.drills", "-m", "drill or hypothesis", "--hypothesis-profile", "drill")
SHARE = "--share"
NOTHING_COLLECTED = 5  # pytest's exit code
RESULT = "tests/drills.json"
Parts = Mapping[str, Sequence[str]]  # name → arguments of Python


@dataclass(frozen=True)
class Result:
    """How a part last ended, on which commit (`+` where files differed from it), when, on which machine."""

    passed: bool
    commit: str
    date: str
    machine: str
    minutes: float
    summary: str


def parts() -> Parts:
    """Return every folder of tests with tests of its own, the loose files, other Pythons, and the faults, in shares."""
    pythons = {f"python-{version}": ("-m", "tests.pythons", version) for version in PYTHONS}
    return dict(tests()) | pythons | dict(faults())


def tests() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the drills of each folder, of some in shares, and of the loose files."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").glob("*/test_*.py"))
    for folder in sorted({file.parent for file in files}):
        own, many = [str(file) for file in files if file.parent == folder], SHARES.get(folder.name, 1)
        for n in range(many):
            here = (SHARE, f"{n + 1}/{many}", *own) if folder.name == "attacks" else own[n::many]
            yield f"{folder.name}-{n + 1}" if many > 1 else folder.name, (*PYTEST, *here)
    yield "house", (*PYTEST, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_*.py")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have pytest know a share, n/m: of the selected tests the n-th and every m-th after it."""
    parser.addoption(SHARE, default="1/1")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a share of the tests."""
    first, many = map(int, config.getoption(SHARE).split("/"))
    items[:] = items[first - 1 :: many]


def faults() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the faults of each engine in parts."""
    for engine, many in FAULTS_OF_A_PART.items():
        names = [fault.name for fault in FAULTS if fault.engine == engine]
        for n, first in enumerate(range(0, len(names), many), 1):
            only = [word for name in names[first : first + many] for word in ("--only", name)]
            yield f"faults-{engine.replace(' ', '-')}-{n}", ("-m", "tests.faults", *only)


def main(words: Sequence[str] | None = None, of: Parts | None = None, results: Path = RESULTS) -> int:
    """Run parts, or say how they last ended; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--status", action="store_true", help="say how each part last ended, run none")
    parser.add_argument("--again", action="store_true", help="run parts also where they passed on these files")
    parser.add_argument("part", nargs="*", help="parts to run; none: all")
    asked, known = parser.parse_args(words), of or parts()
    meant = {name: [part for part in known if part == name or part.startswith(f"{name}-")] for name in asked.part}
    if unknown := [name for name, those in meant.items() if not those]:
        print(f"error: no part is called {', '.join(unknown)}; parts: {', '.join(known)}", file=sys.stderr)
        return 2
    wanted = list(dict.fromkeys(part for those in meant.values() for part in those)) or list(known)
    ended = read(results)
    if not asked.status:
        missing = [name for name in wanted if asked.again or not passed_here(name, ended.get(name))]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            started = {threads.submit(done, name, known[name]): name for name in longest_first(missing, ended)}
            try:
                for run in as_completed(started):
                    ended |= {started[run]: run.result()}
                    write(results, ended)
            except KeyboardInterrupt:
                threads.shutdown(cancel_futures=True)  # what is running had the signal too
                raise
    print("\n".join(status(wanted, ended)))
    return int(not all(passed_here(name, ended.get(name)) for name in wanted))


def longest_first(names: Iterable[str], ended: Mapping[str, Result]) -> list[str]:
    """Return parts by how long they took, those that never ran before all, so that none is left to run alone."""
    return sorted(names, key=lambda name: -(ended[name].minutes if name in ended else float("inf")))


def done(part: str, arguments: Sequence[str]) -> Result:
    """Run a part and return how it ended; what it prints is printed after its name, the last line is its summary."""
    began, last = time.monotonic(), ""
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{part}: {line}", end="", flush=True)
            last = line.strip(" =\n") or last
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    minutes = round((time.monotonic() - began) / 60, 1)
    passed = process.returncode in {0, NOTHING_COLLECTED}
    return Result(passed, commit(part), date, machine, minutes, last[:120])


def commit(part: str) -> str:
    """Return the commit of a part's files, with `+` where they differ from it; empty outside a checkout."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("" if same_files("HEAD", part) else "+") if head.returncode == 0 else ""


def same_files(commit: str, part: str) -> bool:
    """Return whether tracked files are those of a commit, but for what the part does not read."""
    call = ["git", "diff", "--quiet", commit, "--", ".", *(f":!{path}" for path in unread(part))]
    return subprocess.run(call, cwd=ROOT, capture_output=True, check=False).returncode == 0


def unread(part: str) -> list[str]:
    """Return what a part does not read: tests of other parts than its own and those that these import, what benchmarks
    found, and pages beside the folders that its tests do not name."""
    folders = {path.parent.name: path.parent for path in (ROOT / "tests").glob("*/*.py")}
    own = part.partition("-")[0]
    if own not in folders:  # the loose tests look at all files, and other Pythons run most folders
        return [RESULT]
    needed, texts, new = set[str](), list[str](), {own, "support"}
    while new:
        needed |= new
        texts += [path.read_text(encoding="utf-8") for name in new for path in folders[name].rglob("*.py")]
        named = {name for text in texts for name in re.findall(r"^ *(?:from|import) tests\.(\w+)", text, re.MULTILINE)}
        new = named & folders.keys() - needed
    pages = [page.name for page in ROOT.glob("*.md") if not any(f'"{page.name}"' in text for text in texts)]
    loose = [f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py") if path.stem != "conftest"]
    return [RESULT, "docs/performance*", *pages, *loose, *(f"tests/{name}" for name in sorted(folders.keys() - needed))]


def passed_here(part: str, result: Result | None) -> bool:
    """Return whether a part passed on the very files of it that are here."""
    return result is not None and result.passed and bool(result.commit) and same_files(result.commit, part)


def status(wanted: Iterable[str], ended: Mapping[str, Result]) -> list[str]:
    """Return a line for each part, and how many did not pass on these files."""
    lines, missing = [], 0
    for name in wanted:
        result = ended.get(name)
        here = passed_here(name, result)
        missing += not here
        if result is None:
            lines.append(f"{name:22} never ran")
            continue
        verdict = ("passed" if result.passed else "FAILED") + ("" if here else ", on other files")
        when = f"{result.date}  {result.commit[:10] or 'no commit'}  {result.machine}  {result.minutes} min"
        lines.append(f"{name:22} {verdict:24} {when}  {result.summary}")
    return [*lines, f"{missing} of {len(lines)} parts did not pass on these files"]


def read(path: Path) -> dict[str, Result]:
    """Return the results that a file holds; none where there is no file."""
    text = path.read_text(encoding="utf-8") if path.exists() else "{}"
    return {name: Result(**values) for name, values in json.loads(text).items()}


def write(path: Path, ended: Mapping[str, Result]) -> None:
    """Write results so that a run which ends at any time leaves the old file or the new one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({name: asdict(each) for name, each in sorted(ended.items())}, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
