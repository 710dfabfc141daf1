"""The synthetic data set: Parquet microdata, the public domain, and a plan that releases it as it is.

Establishments are drawn in batches, each from the seed and its number alone; of very many records, a file holds
several.
"""

import csv
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import counted
from pipeline.planning.economy import Economy, Figures, Ints, read_rows
from pipeline.planning.economy.firms import Chained, Firms, evenly, rounded
from pipeline.storage.paths import SYNTHETIC, filled, require_new

# Firms below this number own the establishment of that number alone; from here on they may own several.
CHAIN_NUMBERS_FROM: Final = 900_000_000
DIGITS: Final = 9  # of a number; of more records, more digits and the same first number of firms, with zeros behind it
MORE_DIGITS: Final = 12
# Firms have establishments in at most so many batches: beyond 8 million records the economy is a row of nations.
BATCHES_A_NATION: Final = 8
FIRMS_A_NATION: Final = 800_000

CONF: Final = Path(__file__).resolve().parents[3] / "conf"
DOMAIN: Final = {"naics.csv": CONF / "codes" / "naics_2022.csv", "counties.csv": CONF / "codes" / "counties_2022.csv"}
PLAN: Final = CONF / "plans" / "cbp-synthetic.yaml"

RECORDS_A_BATCH: Final = 1_000_000  # memory is bounded by one such batch a thread
FEWEST_FILES: Final = 4  # even small data have partitions, as real data do
MOST_FILES: Final = 500
CODED: Final = ["naics", "county", "employment"]  # columns of few distinct values
RECORDS_A_GROUP: Final = 1 << 18  # Parquet row group: a reader may take a quarter of a file at a time
MOST_RECORDS: Final = CHAIN_NUMBERS_FROM * 10 ** (MORE_DIGITS - DIGITS) - 1  # beyond, they would meet those of chains


@dataclass(frozen=True)
class Establishments:
    """A batch of n records, each column of length n; `number` and `firm` are the digits of the ids."""

    digits: int  # of an id
    number: Ints
    firm: Ints
    industry: Ints  # positions in the list of industries
    county: Ints  # positions in the list of counties
    employment: Ints  # people, ≥ 0
    payroll: Ints  # thousands of dollars, ≥ 0


class Batches:
    """The records in `count` batches; a batch depends on the arguments and its number, and on nothing else."""

    def __init__(self, firms: Firms, *, records: int, count: int, seed: int) -> None:
        self.count, self._firms, self._records, self._seed = count, firms, records, seed
        self._digits = DIGITS if records < CHAIN_NUMBERS_FROM else MORE_DIGITS
        self._one_at_a_time = Lock()
        self._chained = lru_cache(maxsize=2)(self._draw_chained)  # two: threads may work on both sides of a border

    def draw(self, batch: int) -> Establishments:
        """Return the records of number `batch`, in random order; threads may call this at once."""
        nation = batch // BATCHES_A_NATION
        first = nation * BATCHES_A_NATION
        with self._one_at_a_time:
            chained = self._chained(nation)
        last = min(first + BATCHES_A_NATION, self.count)
        # the chained establishments are spread over the nation's batches as its records are
        begin, start, stop, end = (self._first(edge) for edge in (first, batch, batch + 1, last))
        mine = chained.part(*(len(chained) * (edge - begin) // max(end - begin, 1) for edge in (start, stop)))
        return self._mixed(self._rng(0, batch), np.arange(start + 1, stop + 1), mine, nation)

    def _first(self, batch: int) -> int:
        return self._records * batch // self.count

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))

    def _draw_chained(self, nation: int) -> Chained:
        first = nation * BATCHES_A_NATION
        records = self._first(min(first + BATCHES_A_NATION, self.count)) - self._first(first)
        return self._firms.draw(self._rng(1, nation), records)

    def _mixed(self, rng: np.random.Generator, numbers: Ints, chained: Chained, nation: int) -> Establishments:
        industry, county, employment, payroll = self._singles(rng, len(numbers) - len(chained))
        order = rng.permutation(len(numbers))
        firms = CHAIN_NUMBERS_FROM * 10 ** (self._digits - DIGITS) + nation * FIRMS_A_NATION + chained.firm
        own = np.full(len(industry), -1)
        firm = np.concatenate([own, firms])[order]
        return Establishments(
            digits=self._digits,
            number=numbers,
            firm=np.where(firm < 0, numbers, firm),
            industry=np.concatenate([industry, chained.industry])[order],
            county=np.concatenate([county, chained.county])[order],
            employment=np.concatenate([employment, chained.employment])[order],
            payroll=np.concatenate([payroll, chained.payroll])[order],
        )

    def _singles(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints, Ints]:
        model = self._firms.economy
        _, sectors, states = model.shape
        shares = model.singles
        cells = np.repeat(np.arange(len(shares)), rounded(rng, shares * (count / shares.sum()), count))
        size, rest = np.divmod(cells, sectors * states)
        sector, state = np.divmod(rest, states)
        ends = np.searchsorted(size, np.arange(len(model.classes) + 1))
        employment = np.concatenate(
            [
                law.draw(rng, model.single_laws[k].ravel()[rest[ends[k] : ends[k + 1]]])
                for k, law in enumerate(model.classes)
            ]
        )
        industry = model.industries.pick(sector, rng.random(count))
        county = model.counties.pick(state * sectors + sector, rng.random(count))
        return industry, county, employment, model.payroll(rng, cells, industry, employment)


@dataclass(frozen=True)
class Generated:
    """The files of a synthetic data set; all of it is public."""

    plan: Path
    microdata: Path  # folder of part-00000.parquet, …
    naics: Path
    counties: Path
    records: int
    files: int
    seed: int

    @classmethod
    def at(cls, out: Path, *, records: int, files: int, seed: int) -> "Generated":
        """Return the data set in a folder."""
        naics, counties = (out / "domain" / name for name in DOMAIN)
        return cls(out / "plan.yaml", out / "microdata", naics, counties, records, files, seed)


def generate(records: int, seed: int, out: Path, *, threads: int = 2) -> Generated:
    """Write synthetic establishments with their domain and plan.

    The same seed gives the same bytes of every file under one version of NumPy and PyArrow on one kind of processor,
    whatever the number of threads. `plan.yaml` appears last, so a folder that has one is complete.

    Args:
        records: Their number, at least 0.
        seed: At least 0.
        out: The folder to write, absent or empty.
        threads: At least 1.

    Raises:
        PlanError: A number is out of range.
        StateError: `out` is neither absent nor an empty folder.
        PrdpError: `out` cannot be written.
    """
    if not 0 <= records <= MOST_RECORDS:
        raise PlanError(f"{arg('records')}: a number from 0 to {MOST_RECORDS} is needed")
    if not seed >= 0:
        raise PlanError(f"{arg('seed')}: a whole number of at least 0 is needed")
    require_new(out)  # before the economy is computed
    count = max(1, min(records, max(FEWEST_FILES, -(-records // RECORDS_A_BATCH))))
    a_file = -(-count // MOST_FILES)
    industries, counties = (codes(source) for source in DOMAIN.values())
    batches = Batches(Firms(Economy(industries, counties, Figures())), records=records, count=count, seed=seed)
    with filled(out) as folder:
        _write_public(folder)
        _write_microdata(folder, batches, a_file, threads)
    return Generated.at(out, records=records, files=-(-count // a_file), seed=seed)


def _write_public(folder: Path) -> None:
    (folder / "domain").mkdir()
    for name, source in DOMAIN.items():
        shutil.copyfile(source, folder / "domain" / name)
    shutil.copyfile(PLAN, folder / "plan.yaml")


def _write_microdata(folder: Path, batches: Batches, a_file: int, threads: int) -> None:
    (folder / "microdata").mkdir()
    lists = [codes(source) for source in DOMAIN.values()]
    starts = range(0, batches.count, a_file)

    def write(file: int) -> None:
        path = folder / "microdata" / f"part-{file:05d}.parquet"
        numbers = range(starts[file], min(starts[file] + a_file, batches.count))
        write_parquet((table(batches.draw(batch), *lists) for batch in numbers), path, CODED)

    with ThreadPoolExecutor(threads) as pool:
        for _ in counted("writing files", pool.map(write, range(len(starts))), len(starts)):
            pass


def codes(path: Path) -> list[str]:
    """Return the codes of a list of conf/codes, in its order."""
    return [row["code"] for row in read_rows(path)]


def table(drawn: Establishments, industries: list[str], counties: list[str]) -> pa.Table:
    """Return the rows of a batch; codes are dictionaries of all industries and counties."""
    columns = {
        "establishment_id": ids("E", drawn.number, drawn.digits),
        "firm_id": ids("F", drawn.firm, drawn.digits),
        "naics": pa.DictionaryArray.from_arrays(pa.array(drawn.industry, pa.int32()), pa.array(industries)),
        "county": pa.DictionaryArray.from_arrays(pa.array(drawn.county, pa.int32()), pa.array(counties)),
        "employment": pa.array(drawn.employment),
        "payroll": pa.array(drawn.payroll),
    }
    return pa.table(columns)


def ids(letter: str, numbers: Ints, digits: int = DIGITS) -> pa.StringArray:
    """Return the letter and the digits of each number below 10^digits; no Python string is made per record."""
    text = np.empty((len(numbers), 1 + digits), dtype=np.uint8)
    text[:, 0] = ord(letter)
    rest = numbers.astype(np.uint32 if digits == DIGITS else np.uint64)
    for column in range(digits, 0, -1):
        rest, digit = np.divmod(rest, rest.dtype.type(10))
        text[:, column] = digit + ord("0")
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * (1 + digits)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def write_parquet(tables: Iterable[pa.Table], path: Path, coded: list[str]) -> None:
    """Write a file of microdata, of at least one table, marked as synthetic; columns `coded` have few values."""
    more = iter(tables)
    first = next(more)
    # Without Arrow's schema, in which readers would meet its dictionary type instead of plain strings.
    with pq.ParquetWriter(path, first.schema, use_dictionary=coded, store_schema=False) as writer:
        writer.add_key_value_metadata(SYNTHETIC)
        for each in chain((first,), more):
            writer.write_table(each, row_group_size=RECORDS_A_GROUP)


# Cattle farms: a second heavy-tailed inventory, to check that results for establishments carry over. All figures are
# assumptions but for two public totals of the Census of Agriculture 2017 (USDA, NASS): 882,692 operations with cattle,
# and 93.6 million head, 106 a farm. Nothing comes from microdata.

RANCHES, FEEDLOTS, DAIRIES = range(3)
INDUSTRIES: Final = {
    "112111": "Beef Cattle Ranching and Farming",
    "112112": "Cattle Feedlots",
    "112120": "Dairy Cattle and Milk Production",
}
FARMS_A_FILE: Final = 250_000
MOST_FARMS: Final = 900_000_000
STREAM: Final = 2  # of the seed: establishments have 0 and 1


@dataclass(frozen=True, kw_only=True)
class Cattle:
    """Head of cattle: a log-normal body of small herds, and a Pareto tail of feedlots; where they are."""

    median: float = 22.0  # head of a farm of the body …
    spread: float = 1.3  # … whose logarithm has this standard deviation: a mean of 51
    feedlots: float = 0.0125  # share of farms in the tail …
    tail_from: float = 1_000.0  # … which begins at so many head …
    tail_index: float = 1.1  # … has this Pareto index …
    tail_end: float = 150_000.0  # … and ends here: a mean of 4,350
    dairies: float = 0.06  # share of the body's farms that are dairies
    weights_seed: int = 20170422  # fixes the counties, alike for every seed
    county_spread: float = 0.8  # σ of the log-normal numbers of farms of counties
    feeding_states: tuple[str, ...] = ("08", "19", "20", "31", "48")  # Colorado, Iowa, Kansas, Nebraska, Texas …
    feeding: float = 6.0  # … whose counties have so many times more feedlots a farm


def write_cattle(records: int, seed: int, out: Path) -> None:
    """Write `records` farms (≥ 0, at most 9·10⁸) as out/microdata/*.parquet, and out/domain; same seed, same bytes.

    Columns: `farm_id`, `firm_id` (each farm is its own firm), `naics`, `county`, `head` (≥ 1). Raises PlanError on
    any other number.
    """
    if not 0 <= records <= MOST_FARMS:
        raise PlanError(f"{arg('records')}: a number from 0 to {MOST_FARMS} is needed")
    model = Cattle()
    (out / "microdata").mkdir(parents=True)
    (out / "domain").mkdir()
    shutil.copyfile(DOMAIN["counties.csv"], out / "domain" / "counties.csv")
    with (out / "domain" / "naics.csv").open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows([("code", "name"), *INDUSTRIES.items()])
    counties = codes(DOMAIN["counties.csv"])
    shares = _county_shares(model, counties)
    files = max(1, -(-records // FARMS_A_FILE))
    for file in range(files):
        first, end = (records * edge // files for edge in (file, file + 1))
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, file)))
        table = _farms(rng, np.arange(first + 1, end + 1), model, counties, shares)
        write_parquet([table], out / "microdata" / f"part-{file:05d}.parquet", ["naics", "county"])


def _farms(
    rng: np.random.Generator, numbers: Ints, model: Cattle, counties: list[str], shares: NDArray[np.float64]
) -> pa.Table:
    count = len(numbers)
    kind = np.where(rng.random(count) < model.dairies, DAIRIES, RANCHES)
    kind[evenly(rng, count) < model.feedlots] = FEEDLOTS
    tail = np.flatnonzero(kind == FEEDLOTS)
    head = rng.lognormal(np.log(model.median), model.spread, count)
    # x = L·(1 − u·(1 − (L/H)^α))^{−1/α}: the Pareto law cut at H
    left = 1 - (model.tail_from / model.tail_end) ** model.tail_index
    head[tail] = model.tail_from * (1 - evenly(rng, len(tail)) * left) ** (-1 / model.tail_index)
    county = np.minimum(np.searchsorted(shares[0], rng.random(count), side="right"), len(counties) - 1)
    county[tail] = np.minimum(np.searchsorted(shares[1], rng.random(len(tail)), side="right"), len(counties) - 1)
    columns = {
        "farm_id": ids("E", numbers),
        "firm_id": ids("F", numbers),
        "naics": pa.DictionaryArray.from_arrays(pa.array(kind, pa.int32()), pa.array(list(INDUSTRIES))),
        "county": pa.DictionaryArray.from_arrays(pa.array(county, pa.int32()), pa.array(counties)),
        "head": pa.array(np.ceil(np.minimum(head, model.tail_end)).astype(np.int64)),
    }
    return pa.table(columns)


def _county_shares(model: Cattle, counties: list[str]) -> NDArray[np.float64]:
    rng = np.random.default_rng(model.weights_seed)
    body = np.exp(model.county_spread * rng.standard_normal(len(counties)))
    feeding = np.array([model.feeding if code[:2] in model.feeding_states else 1.0 for code in counties])
    weights = np.stack([body, body * feeding])
    shares: NDArray[np.float64] = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    return shares
