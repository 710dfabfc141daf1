"""Published releases without a run: chosen values in the files and with the manifest that a release leaves behind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.engines.writers import PARQUET, ranges
from pipeline.storage.local import LocalPath

ATTEMPT = "0123456789abcdef"


@dataclass(frozen=True, eq=False)
class Table:
    """A released table: its keys are all combinations of `codes`, or `cells`."""

    codes: Mapping[str, tuple[str, ...]]
    values: NDArray[Any]
    errors: NDArray[np.float64]
    kind: str = "gaussian"
    cells: tuple[tuple[str, ...], ...] | None = None

    def rows(self, first: int, end: int) -> pa.Table:
        keys = zip(*(self.cells or list(product(*self.codes.values())))[first:end], strict=True)
        columns = {level: pa.array(codes, pa.string()) for level, codes in zip(self.codes, keys, strict=True)}
        values, errors = self.values[first:end], self.errors[first:end]
        spread = {"value": values, "lower": values - 2 * errors, "upper": values + 2 * errors, "standard_error": errors}
        return pa.table(columns | {name: pa.array(numbers) for name, numbers in spread.items()})


def drawn(codes: Mapping[str, tuple[str, ...]], seed: int = 1, sd: float = 3.0, kind: str = "gaussian") -> Table:
    """A table of random whole values."""
    cells = prod(map(len, codes.values()))
    return Table(codes, np.random.default_rng(seed).integers(-5, 900, cells), np.full(cells, sd), kind)


def publish(folder: Path, tables: Mapping[str, Table], release: str = "made-up") -> Path:
    """Write a release of the tables; return the folder that holds its release.json."""
    home = folder / release
    listed = []
    for name, table in tables.items():
        (home / ATTEMPT / "tables" / name).mkdir(parents=True)
        files = []
        for file, first, end in ranges(len(table.values)):
            path = f"{ATTEMPT}/tables/{name}/{file}"
            rows = table.rows(first, end)
            PARQUET.write(LocalPath(home / path), rows.schema, [rows])
            files.append(_facts(home, path))
        listed.append({"query": name, "rows": len(table.values), "files": files})
    queries = [{"name": name, "by": list(t.codes), "mechanism": {"kind": t.kind}} for name, t in tables.items()]
    (home / ATTEMPT / "policy.json").write_text(json.dumps({"interval": 0.95, "queries": queries}))
    facts = {
        "release": release,
        "attempt": ATTEMPT,
        "plan_digest": "sha256:0",
        "date": "2026-01-01",
        "ledger_head": "0",
    }
    manifest = facts | {"tables": listed, "files": [_facts(home, f"{ATTEMPT}/policy.json")]}
    (home / "release.json").write_text(json.dumps(manifest))
    return home


def _facts(home: Path, path: str) -> dict[str, Any]:
    data = (home / path).read_bytes()
    return {"path": path, "sha256": sha256(data).hexdigest(), "bytes": len(data)}
