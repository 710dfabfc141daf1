"""How long the loss of a firm takes whose rows have no cell, by its number of rows, on one core.

All rows differ. Each row's value is read once; then the time is bounded by the number of lots (MOST_LOTS), whatever the
number of rows: the ratio of both columns to those of 1,000 rows says so on any machine.

    python -m benchmarks.placements [--rounds N]
"""

import argparse
import time
from fractions import Fraction

from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import Reference
from udfs.mechanisms.catalogue import build
from udfs.records.statistics import Sum

MECHANISMS = (
    {"kind": "gaussian", "sigma": 100},
    {"kind": "log", "a": 10, "sigma": 1},
    {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20},
)
ROWS = (1000, 10, 100, 10_000)


def main() -> None:
    """Time one query of each mechanism and print the best rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="the best of them counts")
    rounds = parser.parse_args().rounds
    queries = (
        QueryPolicy(given["kind"], Sum("x"), build(dict(given), Fraction(1)), None, Cells(("county",), 3000))
        for given in MECHANISMS
    )
    for query in queries:
        policy = PolicySum((query,), (frozenset({0}),))
        first: list[float] = []
        for rows in ROWS:
            records = Reference.of([{"x": 7 * i + 3} for i in range(rows)]).records
            rounded = [_times(policy, Reference(records, True)) for _ in range(rounds)]
            best = [min(each) for each in zip(*rounded, strict=True)]
            first = first or best
            texts = (f"{1e3 * s:6.2f} ms ({s / one:5.2f})" for s, one in zip(best, first, strict=True))
            print(f"{query.name:20} {rows:6,} rows: read {next(texts)}, bounded {next(texts)}")


def _times(policy: PolicySum, firm: Reference) -> tuple[float, float]:
    start = time.perf_counter()
    lots = firm.lots
    between = time.perf_counter()
    policy.loss_at(firm)
    assert sum(times for *_, times in lots) == len(firm.records)
    return between - start, time.perf_counter() - between


if __name__ == "__main__":
    main()
