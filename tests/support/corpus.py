"""Cases of bad input as data: a good world, what a case changes in it, the real command, and what must come of it.

A case is a mapping in tests/corpus/*.yaml:
    name    what is wrong
    with    what is changed first: see CHANGES
    first   commands that run before, each of which must end with 0;  then: what is changed after them
    run     the command line, in the case's folder; `prdp` is left out
    exit    the exit code
    says    the lines on standard error without "error: ", exact but for {folder}, and {*} for any text in a line
"""

import csv
import ctypes
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs.cli import main
from tests.support.leaks import forms, found
from tests.support.patience import PATIENCE
from tests.support.spark import ROOT
from tests.support.submit import Place, submit
from tests.support.world import without_footer

CORPUS = ROOT / "tests" / "corpus"
GOOD = CORPUS / "good"
CANARIES = ("CANARY-KIWI", 58274913, 629481737.5)  # a good record's id, employment and payroll
PROGRESS = re.compile(r"^\[ *[0-9.]+ s\] (?!warning)")
LONGEST_LINE = 300  # characters, without the folder
SHORTEST_CANARY = 5  # characters; shorter ones stand in files by chance

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Case:
    """One case; `canaries` are more confidential values than the good world's."""

    name: str
    run: str
    exit: int
    says: Sequence[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    first: Sequence[str] = ()
    then: Mapping[str, Any] = field(default_factory=dict)
    canaries: Sequence[Any] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Case":
        """Return the case that a corpus file tells."""
        return cls(**{"given" if key == "with" else key: value for key, value in data.items()})


def cases(theme: str) -> list[Any]:
    """Return the mappings of tests/corpus/<theme>.yaml as parameters of a test."""
    return [pytest.param(data, id=data["name"].replace(" ", "-")) for data in listed(theme)]


def listed(theme: str) -> list[dict[str, Any]]:
    """Return the mappings of tests/corpus/<theme>.yaml."""
    read: list[dict[str, Any]] = yaml.safe_load((CORPUS / f"{theme}.yaml").read_text())
    return read


# -- the world and its changes ---------------------------------------------------------------------------------------


def good_records() -> Records:
    """Return the records of the good world, typed as its Parquet file has them."""
    with (GOOD / "records.csv").open(newline="") as file:
        return [
            row | {"employment": int(row["employment"]), "payroll": float(row["payroll"])}
            for row in csv.DictReader(file)
        ]


def _codes(name: str) -> list[str]:
    return (GOOD / "domain" / f"{name}.csv").read_text().splitlines()[1:]


def build(folder: Path) -> Path:
    """Write the good world into `folder`; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(GOOD / "plan.yaml", folder)
    shutil.copytree(GOOD / "domain", folder / "domain")
    (folder / "tmp").mkdir()
    write_records(folder / "microdata" / "a.parquet", good_records())
    return folder


def write_records(path: Path, records: Records, types: Mapping[str, str] | None = None) -> None:
    """Write records as Parquet or CSV, by the path's ending; a column's Arrow type is inferred where none is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(column for record in records for column in record)) or list(types or {})
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([columns, *(map(record.get, columns) for record in records)])
        return
    table = {c: _array([record.get(c) for record in records], (types or {}).get(c)) for c in columns}
    pq.write_table(pa.table(table), path)


def _array(values: list[Any], kind: str | None) -> pa.Array:
    """Return a column of values of one kind: by default text where one of them is text, as files of others have it."""
    for plain in (str, float):
        if kind is None and any(isinstance(value, plain) for value in values):
            values = [None if value is None else plain(value) for value in values]
    if kind is None:
        return pa.array(values)
    if kind.startswith("decimal"):
        digits, places = map(int, re.findall(r"\d+", kind)[1:])
        return pa.array([None if value is None else str(value) for value in values]).cast(pa.decimal128(digits, places))
    if kind == "dictionary":
        return pa.array(values).dictionary_encode()
    turn = {"string": str, "binary": lambda value: str(value).encode(), "bool": bool, "double": float}.get(kind, int)
    numbers = [None if value is None else turn(value) for value in values]
    return pa.array(numbers, pa.type_for_alias(kind))


def _edit(folder: Path, name: str, edits: Mapping[str, str]) -> None:
    text = (folder / name).read_text()
    for old, new in edits.items():
        assert old in text, f"the case edits {old!r}, which is not in {name}"
        text = text.replace(old, new, 1)
    (folder / name).write_text(text)


def _write(folder: Path, name: str, contents: str | bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.encode())


def _repeat(folder: Path, name: str, parts: Mapping[str, Any]) -> None:
    text = "".join(parts["text"].replace("%", str(number)) for number in range(parts["times"]))
    _write(folder, name, parts.get("begin", "") + text + parts.get("end", ""))


def _remove(folder: Path, name: str, _: Any) -> None:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cut(folder: Path, name: str, size: int) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:size])


def _spoil(folder: Path, name: str, between: Sequence[int]) -> None:
    """Replace the bytes from the first number to before the second."""
    first, end = between
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:first] + b"\xff" * (end - first) + data[end:])


def _records(folder: Path, name: str, change: Mapping[str, Any]) -> None:
    """`change`: {set: columns of every record, drop: columns, count: records kept, types: Arrow types}."""
    drop = change.get("drop", [])
    records = [{k: v for k, v in record.items() if k not in drop} for record in good_records()]
    records = [record | change.get("set", {}) for record in records][: change.get("count")]
    write_records(folder / name, records, change.get("types"))


CHANGES: Mapping[str, Callable[[Path, str, Any], None]] = {  # kind → what is done to each path with its value
    "edit": _edit,  # {old: new, …}
    "write": _write,  # text or bytes
    "repeat": _repeat,  # {begin, text, times, end}; % in the text: the number of the repetition
    "remove": _remove,
    "cut": _cut,  # to so many bytes; negative: so many from the end
    "spoil": _spoil,
    "link": lambda folder, name, target: (folder / name).symlink_to(target),
    "folder": lambda folder, name, _: (folder / name).mkdir(parents=True),
    "mode": lambda folder, name, mode: (folder / name).chmod(int(mode, 8)),
    "records": _records,
}


def change(folder: Path, changes: Mapping[str, Any]) -> list[str]:
    """Make a case's changes, path by path; a path may have a * for a name. Return the paths that were changed."""
    changed = []
    for kind, places in changes.items():
        for name, value in places.items():
            above, _, last = name.rpartition("/")
            below = [path for path in folder.glob(above) if path.is_dir()] if "*" in above else []
            matches = [f"{path.relative_to(folder)}/{last}" for path in below] if "*" in above else [name]
            assert matches, f"the case changes {name}, which is not there"
            for match in matches:
                CHANGES[kind](folder, match, value)
            changed += matches
    return changed


# -- running ---------------------------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which all that a run leaves lies below `folder`."""
    store = {f"AWS_{name}": "none" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
    store |= {"AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "1"}
    own = {"XDG_STATE_HOME": "state", "TMPDIR": "tmp", "HOME": "home"}
    return {name: str(folder / place) for name, place in own.items()} | store | {"COLUMNS": "80"}


def in_process(command: str, folder: Path) -> Run:
    """Run the real command in this process, from `folder`."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)
        patch.chdir(folder)
        code = main(shlex.split(command.replace("{folder}", str(folder))))
    tempfile.tempdir = None
    return Run(code, out.getvalue(), err.getvalue())


def in_child(command: str, folder: Path, before: str = "", prepare: Callable[[], None] | None = None) -> Run:
    """Run the real command in a process of its own; `before`: shell commands in a mount namespace of its own."""
    words = [sys.executable, "-m", "jobs.cli", *shlex.split(command.replace("{folder}", str(folder)))]
    if before:
        words = ["unshare", "-m", "sh", "-c", f'{before} && exec "$0" "$@"', *words]
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | environment(folder) | {"PYTHONPATH": str(ROOT)},
        preexec_fn=prepare,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def bound_by_modes() -> None:
    """Have the modes of files bind this process also where its user is root (prctl PR_CAPBSET_DROP, then exec)."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)


def can_mount() -> bool:
    """Whether this user can mount a disk in a namespace of a process."""
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /tmp"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


def play(case: Case, folder: Path, run: Callable[[str, Path], Run] = in_process) -> Run:
    """Build the case's world in `folder` and run its command; raise AssertionError that lists all that is wrong."""
    build(folder)
    own = change(folder, case.given)
    for command in case.first:
        before = in_process(command, folder)
        assert before.code == 0, f"{command}: {before.err}"
    own += change(folder, case.then)
    result = run(case.run, folder)
    assert problems(case, result, folder, own) == []
    return result


# -- judging ---------------------------------------------------------------------------------------------------------


def problems(case: Case, run: Run, folder: Path, own: Iterable[str] = ()) -> list[str]:
    """Return what a run did wrong: exit code, lines, traceback, or a canary outside the confidential places.

    `own`: paths that the case itself wrote.
    """
    wrong = [] if run.code == case.exit else [f"exit code {run.code}, not {case.exit}"]
    lines = [line for line in run.err.splitlines() if not PROGRESS.match(line)]
    if not _agree(lines, [f"error: {line}" for line in case.says], folder):
        wrong.append(f"says {json.dumps(lines, ensure_ascii=False)}")
    if any(len(line.replace(str(folder), "")) > LONGEST_LINE for line in lines):
        wrong.append("a line too long to read")
    if "Traceback" in run.out + run.err:
        wrong.append("a traceback")
    if case.exit != 0 and run.out:
        wrong.append(f"an error with output: {run.out[:200]}")
    canaries = [form for canary in (*CANARIES, *case.canaries) for form in spelled(canary)]
    wrong += [f"{where} tells a canary" for where, text in left(run, folder, own) if tells(text, canaries)]
    return wrong


def _agree(lines: Sequence[str], expected: Sequence[str], folder: Path) -> bool:
    patterns = [re.escape(line.replace("{folder}", str(folder))).replace(r"\{\*\}", ".*") for line in expected]
    return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))


def tells(text: str, canaries: Iterable[str]) -> bool:
    """Whether a canary stands in `text`; one of digits alone not inside a longer number: a double may hold any five."""
    digits = [canary for canary in canaries if canary.isdecimal()]
    alone = any(re.search(rf"(?<![\d.]){canary}(?!\d)", text) for canary in digits)
    return alone or bool(found(text, (canary for canary in canaries if not canary.isdecimal())))


def spelled(canary: Any) -> list[str]:
    """Return the forms in which a value may stand in a text or in a file's bytes; none of a value that is no secret."""
    text = str(canary)
    if len(text) < SHORTEST_CANARY or not any(c.isdigit() or c == "-" for c in text):
        return []
    if isinstance(canary, str):
        return [text, *forms(text.encode())[:4]]
    packed = [struct.pack(order + "d", canary) for order in "<>"]
    if isinstance(canary, int) and abs(canary) < 1 << 63:
        packed += [struct.pack(order + "q", canary) for order in "<>"]
    return [text, f"{canary:,}", *(raw.decode("latin-1") for raw in packed)]


def left(run: Run, folder: Path, own: Iterable[str]) -> list[tuple[str, str]]:
    """Return what a run printed and the files it left, but for the microdata, diagnostics and what the case wrote."""
    said = [("standard output", run.out), ("standard error", run.err)]
    kept = {folder / name for name in own} | {folder / "microdata", folder / "diagnostics"}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not kept & {path, *path.parents}]
    return said + [(str(path.relative_to(folder)), readable(path)) for path in files]


def readable(path: Path) -> str:
    """Return a file's bytes as text, and of a Parquet file also what its compressed pages hold."""
    text = path.read_bytes().decode("latin-1")
    if path.suffix == ".parquet" and text.startswith("PAR1"):
        text += "\n".join(str(column) for column in pq.read_table(path).to_pydict().values())
    return text


# -- one odd record --------------------------------------------------------------------------------------------------

TEMPLATE = {"id": "CANARY-PLUM", "naics": "311811", "county": "01003", "employment": 71625344, "payroll": 80917263.5}
PUBLIC = ("31-33", *(line[: line.index(",")] for name in ("naics", "counties") for line in _codes(name)))


def odd_records() -> list[Any]:
    """Return (what tests/corpus/records.yaml tells, format, what is done with bad records) as parameters of a test.

    A bad record is refused from the first format and dropped from the other; the other way round in the drill.
    """
    records = []
    for data in listed("records"):
        formats = data.get("formats", ("parquet", "csv"))
        ways = ("refuse", "drop") if {"breaks", "file"} & data.keys() else ("refuse",)
        for (n, form), (k, bad) in product(enumerate(formats), enumerate(ways)):
            marks = [pytest.mark.drill] if n != k and len(formats) == len(ways) else []
            records.append(
                pytest.param(data, form, bad, id=f"{data['name'].replace(' ', '-')}-{form}-{bad}", marks=marks)
            )
    return records


def with_record(folder: Path, data: Mapping[str, Any], form: str, bad: str) -> Case:
    """Build the good world with the odd record in `folder`; return what must come of a release."""
    build(folder)
    (folder / "microdata" / "a.parquet").unlink()
    _edit(folder, "plan.yaml", {"bad_records: refuse": f"bad_records: {bad}"})
    odd = TEMPLATE | data["record"]
    write_records(folder / "microdata" / f"a.{form}", [*good_records(), odd], data.get("types"))
    says: list[str] = []
    if "breaks" in data and bad == "refuse":
        advice = "correct the records, or set bad_records: drop"
        says = [f"dataset corpus: the microdata break the contract: {data['breaks']}; {advice}"]
    if "file" in data:
        where = f"microdata {{folder}}/microdata/a.{form}"
        says = [f"{where}: column {data['file']}; correct the microdata, or the plan's columns"]
    secret = [value for value in odd.values() if not any(code in str(value) for code in PUBLIC)]
    return Case(data["name"], "release plan.yaml", 2 if "file" in data else 4 if says else 0, says, canaries=secret)


@cache
def tables(extra: frozenset[tuple[str, Any]] | None, bad: str) -> dict[str, bytes]:
    """Return the tables' files of the good world under a known key, with one more record where `extra` tells one.

    `bad`: what its plan does with bad records; the files name the plan's digest.
    """
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder, "world"))
        _edit(Path(folder, "world"), "plan.yaml", {"bad_records: refuse": f"bad_records: {bad}"})
        more = [] if extra is None else [TEMPLATE | dict(extra)]
        write_records(Path(folder, "world", "microdata", "a.parquet"), [*good_records(), *more])
        return released(Path(folder, "world"))


def released(folder: Path) -> dict[str, bytes]:
    """Release the world in `folder` under a known key; return the tables' files, but for what they say of the plan."""
    submit(Place(folder / "plan.yaml", folder / "known"))
    return published(folder / "known" / "out")


def published(out: Path) -> dict[str, bytes]:
    """Return the files of the tables that are published in `out`, but for what they say of the plan."""
    files = sorted(out.glob("corpus/*/tables/*/*"))
    return {f"{path.parent.name}/{path.name}": without_footer(path.read_bytes()) for path in files}
