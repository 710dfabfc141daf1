"""Plans and microdata whose releases under a known key are kept as digests in tests/pinned, and how these are taken.

`python -m tests.support.pinned` writes tests/pinned/tables.json, plans.json and generated.json anew. It is run by hand,
from the repository, and only where a published table is meant to change: the tests never run it. Whatever else is
changed, these files stay.

A table has two digests. `contents` is that of its columns, types and values in a text of our own, and holds under every
version of PyArrow. `bytes` is that of the files, whose footers and encodings are the affair of the PyArrow that wrote
them: it holds under the version that is recorded beside it.

Of the product this file uses what tests/support/submit.py offers (a release under a given key), an engine of
tests/support/spark.py, and the `prdp` command: all else goes by files.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pipeline.publication.policy_document import ADDED
from tests.support.pinned_plans import PLANS, RELEASE
from tests.support.submit import Place, submit
from tests.support.world import without_footer

ROOT = Path(__file__).parents[2]
PINNED = ROOT / "tests" / "pinned"
KEY = bytes(range(100, 132))
TABLES, PLAN_FACTS, GENERATED = (PINNED / name for name in ("tables.json", "plans.json", "generated.json"))
# What computes tables, losses and synthetic records: told beside the digests.
LIBRARIES = ("mpmath", "numpy", "pyarrow", "scipy")


def versions() -> dict[str, str]:
    """Return the libraries' versions, and which last digits NumPy's functions have: another processor has others."""
    numbers = np.random.default_rng(1).uniform(0.001, 50, 1000)
    arithmetic = b"".join(f(numbers).tobytes() for f in (np.exp, np.expm1, np.log, np.log1p, np.tanh))
    arithmetic += np.power(numbers, 0.37).tobytes()
    return {library: version(library) for library in LIBRARIES} | {"arithmetic": sha256(arithmetic)[:16]}


def recorded(path: Path) -> Any:
    return json.loads(path.read_text())


# What is done with them.


def prdp(*arguments: object) -> tuple[int, str, str]:
    """Run the command that pyproject.toml names, in this process; return its exit code, output and errors."""
    module, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["prdp"].split(":")
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            code = getattr(import_module(module), name)([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
    return int(code or 0), out.getvalue(), errors.getvalue()


def told(*arguments: object) -> Any:
    """Run a command that must succeed; return the JSON that it prints."""
    code, out, errors = prdp(*arguments, "--json")
    assert code == 0, errors
    return json.loads(out)


def release(plan: Path, folder: Path, engine: Any = None, microdata: Path | None = None, key: bytes = KEY) -> Path:
    """Release a plan under a known key, as Parquet and CSV, into a folder; return that of the published attempt.

    `engine` None: Dask.
    """
    place = Place(plan, folder)
    outcome = submit(place, engine=engine, microdata=microdata, csv=True, key=key)
    return Path(place.out) / RELEASE / outcome.attempt


# Digests.


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def table_contents(table: pa.Table) -> str:
    """Return the digest of names, types and values, whatever version of PyArrow wrote them."""
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        plain = "string" if pa.types.is_large_string(field.type) else str(field.type)
        digest.update(f"{field.name}\0{plain}\0{len(column)}\0".encode())
        values = [value.hex() if isinstance(value, float) else str(value) for value in column.to_pylist()]
        digest.update("\0".join(values).encode())
    return digest.hexdigest()


def csv_contents(path: Path) -> str:
    """Return the digest of the columns' names and texts, numbers by their values."""
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    texts = [
        [float(text).hex() for text in column] if name in ("value", "lower", "upper", "standard_error") else column
        for name, column in zip(header, zip(*lines, strict=True), strict=True)
    ]
    return sha256(json.dumps([header, texts]).encode())


def attempt_digests(attempt: Path) -> dict[str, dict[str, str]]:
    """Return the digests of every table of a published attempt, Parquet and CSV, and of its policy."""
    digests = {"policy.json": {"bytes": sha256(policy_of_0_1((attempt / "policy.json").read_bytes()))}}
    for place in sorted((attempt / "tables").iterdir()):
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        whole = sha256(b"".join(f"{f.name} {sha256(without_footer(f.read_bytes()))}\n".encode() for f in files))
        if place.is_dir():
            contents = table_contents(pa.concat_tables([pq.read_table(file, partitioning=None) for file in files]))
        else:
            contents = csv_contents(place)
        digests[f"tables/{place.name}"] = {"bytes": whole, "contents": contents}
    return digests


_ADDED_IN_0_1 = "Losses add up: a {0}'s loss over several releases is at most the sum of their policies, and {1}"
WORDS_OF_0_1 = {  # now → in 0.1, which said more than is true
    "influences and, where public parts of a table have mechanisms of their own, on the part that r is in; it grows "
    "with every influence, and": "influence alone, grows with it, and",
    "one that stands in two rows is two records": "an establishment with two rows is two records",
    f"{ADDED.format('record')} A group": _ADDED_IN_0_1.format("record", "a group"),
    f"{ADDED.format('firm')} Several": _ADDED_IN_0_1.format("firm", "several"),
}


def in_words_of_0_1(text: str) -> str:
    """Return a text in which the guarantee is said as version 0.1 said it."""
    for now, then in WORDS_OF_0_1.items():
        text = text.replace(now, then)
    return text


def policy_of_0_1(text: bytes) -> bytes:
    """Return policy.json in the words of 0.1 and without the sentence on composition: the bytes of 0.1."""
    policy = json.loads(in_words_of_0_1(text.decode()))
    policy["sum"].pop("composition", None)
    return (json.dumps(policy, ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode()


def plan_facts(plan: Path) -> dict[str, Any]:
    """Return a plan's digest and what `prdp explain` says of its losses; all else that it says as a digest.

    But for what losses mean, as (ε, δ) for instance, how exact they are, and reconciled errors: all that is computed
    better in every version.
    """
    explained = told("explain", plan)
    del explained["total_means"], explained["size"], explained["verdict"]
    for query in explained["queries"]:
        del query["excess"]
        for error in query["accuracy"]:
            error.pop("reconciled")
    facts = {"plan_digest": explained["plan_digest"], "total": explained["total"]}
    facts["losses"] = {
        query["name"]: [[loss["rho"], loss["epsilon"]] for loss in query["losses"]] for query in explained["queries"]
    }
    return facts | {"explained": sha256(json.dumps(explained, sort_keys=True).encode())}


def without_texts(plan: Path) -> None:
    """Take what public pages say out of a plan: version 0.1 had no such texts, and they enter the digest."""
    given = yaml.safe_load(plan.read_text())
    for each in (given, *given["queries"]):
        for text in ("title", "about", "unit", "contact"):
            each.pop(text, None)
    plan.write_text(yaml.safe_dump(given, sort_keys=False))


def plan_files(folder: Path) -> dict[str, Path]:
    """Write every plan of which facts are kept; return their paths by name."""
    generated = folder / "generated"
    assert prdp("generate", "--records", 1000, "--seed", 1, "--out", generated)[0] == 0
    without_texts(generated / "plan.yaml")
    outside = {"conf-table-1": ROOT / "conf" / "plans" / "table-1.yaml", "generated": generated / "plan.yaml"}
    return {name: made(folder / name) for name, made in PLANS.items()} | outside


def generated_contents(folder: Path) -> dict[str, str]:
    """Generate synthetic microdata; return a digest for each file."""
    assert prdp("generate", "--records", 5000, "--seed", 7, "--out", folder)[0] == 0
    contents = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parquet = path.suffix == ".parquet"
        name = path.relative_to(folder).as_posix()
        contents[name] = table_contents(pq.read_table(path)) if parquet else sha256(path.read_bytes())
    return contents


# A ledger and its files, as runs of version 0.1 left them.

LEFT_BEHIND = PINNED / "0.1"
WRITTEN_AT = 1767225600 * 10**9  # when the microdata were: 2026-01-01, in nanoseconds


def restored(root: Path, code: str | None = None) -> Path:
    """Put ledger, staging, output, microdata and plans of version 0.1 into the folder `root`; return the ledger's file.

    Entries hold absolute places, so they are chained anew, as docs/ledger.md tells it. `code` takes the place of the
    digest of the build that reserved. The schema is migrated.
    """
    shutil.copytree(LEFT_BEHIND, root, ignore=shutil.ignore_patterns("ledger.jsonl", "ledger.sql"))
    for path in (root / "microdata").iterdir():
        os.utime(path, ns=(WRITTEN_AT, WRITTEN_AT))
    state = root / "state"
    for path in (state, *state.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    ledger = state / "ledger.sqlite"
    heads: dict[str, str] = {}
    head = "0" * 64
    with closing(sqlite3.connect(ledger)) as connection:
        connection.executescript((LEFT_BEHIND / "ledger.sql").read_text())
        for line in (LEFT_BEHIND / "ledger.jsonl").read_text().splitlines():
            entry = json.loads(line)
            was = entry.pop("hash")
            payload = entry["payload"].replace("@ROOT@", str(root))
            if entry["event"] == "reserved" and code is not None:
                payload = payload.replace(json.loads(payload)["code"], code)
            entry |= {"payload": payload, "previous": head}
            head = heads[was] = chained(entry)
            marks = ", ".join("?" * 10)
            connection.execute(f"INSERT INTO entries VALUES ({marks})", [*entry.values(), head])
        connection.commit()
    ledger.chmod(0o600)
    for path in (root / "releases").glob("*/release.json"):
        manifest = path.read_text()
        path.write_text(
            manifest.replace(json.loads(manifest)["ledger_head"], heads[json.loads(manifest)["ledger_head"]])
        )
    told("ledger", "migrate", "--leave-drawn", "--ledger", ledger)
    return ledger


def chained(entry: Mapping[str, Any]) -> str:
    """Return the hash of an entry without one: the SHA-256 of its canonical JSON."""
    return sha256(json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def _write(path: Path, what: dict[str, Any]) -> None:
    path.write_text(_text({"versions": versions()} | what) + "\n")


def _text(what: Any, depth: int = 0) -> str:
    """JSON with a line for each thing down to the fourth level, that differences can be read."""
    if depth == 4 or not isinstance(what, dict):
        return json.dumps(what)
    indent = " " * (depth + 1)
    lines = ",".join(f"\n{indent}{json.dumps(name)}: {_text(value, depth + 1)}" for name, value in what.items())
    return f"{{{lines}\n{indent[1:]}}}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plans = plan_files(folder / "plans")
        tables = {name: attempt_digests(release(plans[name], folder / "releases" / name)) for name in PLANS}
        _write(TABLES, {"tables": tables})
        _write(PLAN_FACTS, {"plans": {name: plan_facts(path) for name, path in plans.items()}})
        _write(GENERATED, {"files": generated_contents(folder / "generated")})


if __name__ == "__main__":
    main()
