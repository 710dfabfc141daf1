"""Writes a synthetic data set: Parquet microdata, the public domain and a plan that releases it as it is."""

import csv
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PlanError, PrdpError
from pipeline.microdata.economy import Economy, Figures
from pipeline.microdata.establishments import CHAIN_NUMBERS_FROM, Batches, Establishments, Ints
from pipeline.microdata.firms import Firms

CONF: Final = Path(__file__).resolve().parents[2] / "conf"
DOMAIN: Final = {
    "naics.csv": CONF / "codes" / "naics_2022.csv",
    "counties.csv": CONF / "codes" / "counties_2022.csv",
}
PLAN: Final = CONF / "plans" / "cbp-synthetic.yaml"

RECORDS_A_FILE: Final = 1_000_000  # memory is bounded by one such file a thread
FEWEST_FILES: Final = 4  # even small data have partitions, as real data do
RECORDS_A_GROUP: Final = 1 << 18  # Parquet row group: a reader may take a quarter of a file at a time
MOST_RECORDS: Final = CHAIN_NUMBERS_FROM - 1  # beyond, numbers of establishments and of chains would meet


@dataclass(frozen=True)
class Generated:
    """Where a synthetic data set lies; all of it is public."""

    plan: Path
    microdata: Path  # folder of part-00000.parquet, …
    naics: Path
    counties: Path
    records: int
    files: int
    seed: int


def generate(
    records: int,
    seed: int,
    out: Path,
    *,
    threads: int = 2,
    on_file: Callable[[int, int], None] = lambda done, files: None,
) -> Generated:
    """Write `records` ≥ 0 synthetic establishments with domain and plan under `out`, and say where.

    The same seed gives the same bytes of every file under one version of NumPy and PyArrow on one kind of
    processor, whatever `threads` ≥ 1; `plan.yaml` appears last, so a folder that has one is complete.
    `on_file(done, files)` is called in the calling thread after each Parquet file. Raises PlanError on a
    negative number, too many records, or where `out` already holds microdata, a domain or a plan; PrdpError
    where it cannot be written.
    """
    if not 0 <= records <= MOST_RECORDS:
        raise PlanError(f"--records: a number from 0 to {MOST_RECORDS} is needed")
    if not seed >= 0:
        raise PlanError("--seed: a whole number of at least 0 is needed")
    _refuse_mixing(out)
    files = max(1, min(records, max(FEWEST_FILES, -(-records // RECORDS_A_FILE))))
    industries, counties = (codes(source) for source in DOMAIN.values())
    batches = Batches(Firms(Economy(industries, counties, Figures())), records=records, files=files, seed=seed)
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A killed run leaves nothing but this hidden folder, which no later run looks into.
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as unfinished:
            _write_public(Path(unfinished))
            _write_microdata(Path(unfinished), batches, threads, on_file)
            # A folder moves onto an empty or absent one only: of two runs at once, the second fails here.
            for name in ("microdata", "domain", "plan.yaml"):
                (Path(unfinished) / name).rename(out / name)
    except OSError as error:
        raise PrdpError(
            f"{out}: cannot write the data set ({error.strerror or error}); choose another --out"
        ) from error
    domain = out / "domain"
    return Generated(
        plan=out / "plan.yaml",
        microdata=out / "microdata",
        naics=domain / "naics.csv",
        counties=domain / "counties.csv",
        records=records,
        files=files,
        seed=seed,
    )


def _refuse_mixing(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise PlanError(f"{out}: not a folder; choose another --out")
    for name in ("microdata", "domain"):
        if (out / name).exists() and not ((out / name).is_dir() and not any((out / name).iterdir())):
            raise PlanError(f"{out / name}: already there, and data sets are never mixed; choose another --out")
    if (out / "plan.yaml").exists():
        raise PlanError(f"{out / 'plan.yaml'}: already there; choose another --out")


def _write_public(folder: Path) -> None:
    (folder / "domain").mkdir()
    for name, source in DOMAIN.items():
        shutil.copyfile(source, folder / "domain" / name)
    shutil.copyfile(PLAN, folder / "plan.yaml")


def _write_microdata(folder: Path, batches: Batches, threads: int, on_file: Callable[[int, int], None]) -> None:
    (folder / "microdata").mkdir()
    industries, counties = (codes(source) for source in DOMAIN.values())

    def write(file: int) -> None:
        path = folder / "microdata" / f"part-{file:05d}.parquet"
        write_parquet(_table(batches.draw(file), industries, counties), path, ["naics", "county", "employment"])

    with ThreadPoolExecutor(threads) as pool:
        for done, _ in enumerate(pool.map(write, range(batches.files)), start=1):
            on_file(done, batches.files)


def codes(path: Path) -> list[str]:
    """Return the codes of a list of conf/codes, in its order."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [row["code"] for row in csv.DictReader(lines)]


def _table(drawn: Establishments, industries: list[str], counties: list[str]) -> pa.Table:
    columns = {
        "establishment_id": ids("E", drawn.number),
        "firm_id": ids("F", drawn.firm),
        "naics": pa.DictionaryArray.from_arrays(pa.array(drawn.industry, pa.int32()), pa.array(industries)),
        "county": pa.DictionaryArray.from_arrays(pa.array(drawn.county, pa.int32()), pa.array(counties)),
        "employment": pa.array(drawn.employment),
        "payroll": pa.array(drawn.payroll),
    }
    return pa.table(columns)


def ids(letter: str, numbers: Ints) -> pa.StringArray:
    """Return the letter and nine digits of each number below 10⁹; no Python string is made per record."""
    text = np.empty((len(numbers), 10), dtype=np.uint8)
    text[:, 0] = ord(letter)
    rest = numbers.astype(np.uint32)
    for place in range(9, 0, -1):
        rest, digit = np.divmod(rest, np.uint32(10))
        text[:, place] = digit + ord("0")
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 10
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def write_parquet(table: pa.Table, path: Path, coded: list[str]) -> None:
    """Write microdata whose columns `coded` have few distinct values."""
    pq.write_table(
        table,
        path,
        row_group_size=RECORDS_A_GROUP,
        use_dictionary=coded,
        store_schema=False,  # else readers would meet Arrow's dictionary type instead of plain strings
    )
