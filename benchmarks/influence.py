"""How fast records become losses, on one core: the kernel of `prdp diagnose` beside np.log1p over as many numbers.

Records are decoded before the clock starts; a loss counts for each record and query. Influences are skewed as those of
establishments are: most lie in the kernel's table, the giants are computed.

    python -m benchmarks.influence [--records N] [--rounds N]
"""

import argparse
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pyarrow as pa

from udfs.mechanisms.catalogue import build
from udfs.records.codes import NOWHERE
from udfs.records.contract import MeasureColumn
from udfs.records.decoding import BaseCells, Decoder, SumSpec
from udfs.records.influence import QueryLoss, record_losses
from udfs.records.keys import CodeColumn

MECHANISMS = (
    {"kind": "gaussian", "sigma": 100},
    {"kind": "laplace", "sigma": 50},
    {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20},
    {"kind": "root", "k": 4, "a": 10, "sigma": 0.5},
    {"kind": "log", "a": 100, "sigma": 0.35},
    {"kind": "log", "a": 50, "sigma": 0.3, "noise": "laplace", "estimator": "median"},
)
CODES = 1000
ONE = Fraction(1)


def main() -> None:
    """Time both in turn and print their best rounds."""
    given = _arguments()
    codes = [f"{111110 + i}" for i in range(CODES)]
    counties = [f"{1001 + i:05d}" for i in range(CODES)]
    naics = CodeColumn("naics", "naics6", "naics6", {code: i for i, code in enumerate(codes)})
    county = CodeColumn("county", "county", "county", {code: i for i, code in enumerate(counties)})
    places = np.append(np.arange(CODES), NOWHERE)
    spec = SumSpec(
        keys=(naics, county),
        measures=(MeasureColumn("payroll", "payroll", ONE, nonnegative=True),),
        bases=(BaseCells(CODES**2, {0: np.append(places[:-1] * CODES, NOWHERE), 1: places}, ("payroll",)),),
        bad_records="refuse",
    )
    batch = _records(given.records, codes, counties)
    records = Decoder(spec).records(batch)
    everywhere = np.zeros(CODES + 1, dtype=np.int64)
    filters = [everywhere, np.append(np.where(places[:-1] % 2, 0, NOWHERE), NOWHERE)]
    queries = [
        QueryLoss(f"q{i}", 0, "payroll", ONE, {0: filters[i % 2], 1: everywhere}, (build(dict(given), ONE),))
        for i, given in enumerate(MECHANISMS)
    ]
    influences = batch.column("payroll").to_numpy().astype(np.float64)
    losses = given.records * len(queries)
    kernel = _best(given.rounds, lambda: record_losses(records, queries, spec).losses)
    log1p = _best(given.rounds, lambda: [np.log1p(influences) for _ in queries])
    print(f"{given.records:,} records, {len(queries)} queries, one core, best of {given.rounds}")
    print(f"losses    {losses / kernel / 1e6:7.1f} million a second")
    print(f"np.log1p  {losses / log1p / 1e6:7.1f} million a second")
    print(f"a record-query loss takes {kernel / log1p:.2f} times as long as a logarithm")


def _records(count: int, codes: list[str], counties: list[str]) -> pa.RecordBatch:
    random = np.random.default_rng(1)
    coded = {
        key: pa.DictionaryArray.from_arrays(
            pa.array(random.integers(0, CODES, count).astype(np.int32)), pa.array(texts)
        )
        for key, texts in (("naics", codes), ("county", counties))
    }
    payroll = np.exp(random.normal(5.5, 2.0, count)).astype(np.int64)
    return pa.record_batch(coded | {"payroll": pa.array(payroll)})


def _best(rounds: int, run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.influence", description="Times the losses of records.")
    parser.add_argument("--records", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
