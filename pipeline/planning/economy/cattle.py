"""Synthetic cattle farms: a second heavy-tailed inventory, to check that results for establishments carry over.

All figures are assumptions but for two public totals of the Census of Agriculture 2017 (USDA, NASS): 882,692 operations
with cattle, and 93.6 million head, 106 a farm. Nothing comes from microdata.
"""

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.planning.economy.generate import DOMAIN, codes, ids, write_parquet
from pipeline.planning.economy.susb import Ints, evenly

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
        raise PlanError(f"--records: a number from 0 to {MOST_FARMS} is needed")
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
    """Return the cumulative shares of counties: of farms of the body, and of feedlots."""
    rng = np.random.default_rng(model.weights_seed)
    body = np.exp(model.county_spread * rng.standard_normal(len(counties)))
    feeding = np.array([model.feeding if code[:2] in model.feeding_states else 1.0 for code in counties])
    weights = np.stack([body, body * feeding])
    shares: NDArray[np.float64] = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    return shares
