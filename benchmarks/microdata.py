"""Microdata for benchmarks, of the synthetic economy, written as a stream: memory does not grow with the records.

python -m benchmarks.microdata KIND RECORDS FOLDER

generated   as `prdp generate` writes them
shuffled    each million in random order and divided among four files, compressed by zstd
skewed      a third of all records in one county and industry
small       10,000 files
single      one file, a million records in a row group
"""

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.measure import ROOT

if TYPE_CHECKING:
    import pyarrow as pa

MILLION = 1_000_000
SHUFFLED, SMALL = 4, 10_000  # files
BYTES_A_RECORD = {"generated": 17, "shuffled": 14, "skewed": 17, "small": 20, "single": 14}  # roughly
GIANT_CELL = {"naics": "722511", "county": "06037"}


def space(kind: str, records: int) -> int:
    """Return how many bytes microdata take, roughly."""
    return BYTES_A_RECORD[kind] * records


def require_space(home: Path, kind: str, records: int) -> None:
    """Stop where a folder, which is made if it is not there, has no space for microdata."""
    home.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(home).free, space(kind, records)
    if not needed < free:
        raise SystemExit(f"error: {home}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")


def made(home: Path, kind: str, records: int) -> Path:
    """Return a folder with such microdata, made in a process of its own where it is not there yet."""
    folder = home / f"{kind}-{records}"
    if not (folder / "plan.yaml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        require_space(home, kind, records)
        print(f"making {records:,} records, {kind}: {space(kind, records) / 1e9:.1f} GB in {folder}", flush=True)
        words = [sys.executable, "-m", "benchmarks.microdata", kind, str(records), str(folder)]
        subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return folder


def plan(folder: Path, name: str, queries: Iterable[Mapping[str, Any]], **dataset: object) -> Path:
    """Write a plan of these queries beside microdata; its limits bind nothing."""
    document = yaml.safe_load((folder / "plan.yaml").read_text())
    limits = [limit | {"rho": 10**6 * limit["rho"]} for limit in document["budget"]]
    document |= {"release": name, "queries": [*queries], "budget": limits if dataset.get("unit") is None else []}
    document["dataset"] |= dataset
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def write(kind: str, records: int, folder: Path) -> None:
    """Write microdata with their domain and plan."""
    from pipeline.planning.economy.generate import CODED, generate, write_parquet

    if kind == "generated":
        generate(records, 1, folder, threads=os.cpu_count() or 1)
        return
    generate(1, 1, folder)
    document = (folder / "plan.yaml").read_text()
    (folder / "plan.yaml").unlink()  # it returns last: a folder that has it is complete
    at = folder / "microdata"
    shutil.rmtree(at)
    at.mkdir()
    tables = _tables(records)
    match kind:
        case "shuffled" | "single":
            _write_mixed(tables, at, SHUFFLED if kind == "shuffled" else 1)
        case "skewed":
            for number, table in enumerate(tables):
                write_parquet([_skewed(table)], at / f"part-{number:05d}.parquet", CODED)
        case "small":
            rows = -(-records // SMALL)
            parts = (table.slice(start, rows) for table in tables for start in range(0, len(table), rows))
            for number, part in enumerate(parts):
                write_parquet([part], at / f"part-{number:05d}.parquet", CODED)
        case _:
            raise SystemExit(f"error: {kind}: generated, shuffled, skewed, small or single is needed")
    (folder / "plan.yaml").write_text(document)


def _write_mixed(tables: Iterator["pa.Table"], folder: Path, files: int) -> None:
    """Write each table in random order, divided among all files: into one file, in the order it has."""
    import numpy as np
    import pyarrow.parquet as pq

    order = np.random.default_rng(1)
    first = next(tables)
    paths = [folder / f"part-{number}.parquet" for number in range(files)]
    with ExitStack() as opened:
        writers = [pq.ParquetWriter(path, first.schema, compression="zstd", store_schema=False) for path in paths]
        for writer in writers:
            opened.enter_context(writer)
        for table in chain((first,), tables):
            rows = table.take(order.permutation(len(table))) if files > 1 else table
            for number, writer in enumerate(writers):
                start, stop = (len(rows) * edge // files for edge in (number, number + 1))
                writer.write_table(rows.slice(start, stop - start))


def _tables(records: int) -> Iterator["pa.Table"]:
    """Yield the records of the synthetic economy by the million, drawn by all processors a little ahead."""
    from pipeline.planning.economy import Economy, Figures
    from pipeline.planning.economy.firms import Firms
    from pipeline.planning.economy.generate import DOMAIN, Batches, codes, table

    industries, counties = (codes(source) for source in DOMAIN.values())
    count = max(1, -(-records // MILLION))
    batches = Batches(Firms(Economy(industries, counties, Figures())), records=records, count=count, seed=1)
    threads = os.cpu_count() or 1
    ahead: deque[Future[pa.Table]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for number in range(count):
            ahead.append(pool.submit(lambda number: table(batches.draw(number), industries, counties), number))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _skewed(table: "pa.Table") -> "pa.Table":
    """Return a table whose every third record lies in one cell."""
    import pyarrow as pa

    for key, code in GIANT_CELL.items():
        coded = table.column(key).chunk(0)
        indices = coded.indices.to_numpy(zero_copy_only=False).copy()
        indices[::3] = coded.dictionary.index(code).as_py()
        changed = pa.DictionaryArray.from_arrays(pa.array(indices), coded.dictionary)
        table = table.set_column(table.schema.get_field_index(key), key, changed)
    return table


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
