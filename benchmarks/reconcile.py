"""What reconciling takes: 100 million cells in 20 tables of industry × county × size, on one machine.

The base has 51 million cells. Values are true totals with Gaussian noise of one variance a table; each size of the
programme runs in a process of its own, for its peak memory. Beside it a quarter and a half of the industries: time and
memory should be linear in cells.

    python -m benchmarks.reconcile [--shares 0.25 0.5 1]
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from udfs.estimates.solve import reconcile
from udfs.estimates.tables import Int32s, Observed, Sums
from udfs.numbers.arrays import Floats

INDUSTRIES, COUNTIES, SIZES = 1000, 3200, 16
PROGRAMME = [  # levels: divisors of industries, states of counties, classes of sizes
    (1, "county", 1), (1, "county", 2), (3, "county", 1), (1, "county", 16), (10, "county", 1),
    (3, "county", 4), (1, "state", 1), (10, "county", 4), (50, "county", 1), (1, "state", 4),
    (3, "state", 1), (3, "county", 16), (50, "county", 16), (1, "nation", 1), (1, "state", 16),
    (10, "state", 1), (1, "nation", 16), (50, "state", 1), (1000, "county", 16), (1000, "nation", 16),
]  # fmt: skip


def main() -> None:
    """Run each share in a process of its own, or one share here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.25, 0.5, 1.0])
    parser.add_argument("--only", type=float)
    given = parser.parse_args()
    if given.only:
        _one(given.only)
        return
    for share in given.shares:
        subprocess.run([sys.executable, "-m", "benchmarks.reconcile", "--only", str(share)], check=True)


def _one(share: float) -> None:
    tables = _tables(round(INDUSTRIES * share))
    cells = sum(table.values.size for table in tables if table.values is not None)
    start, processor = time.perf_counter(), time.process_time()
    estimates = reconcile(tables, unit=0.001)
    solved, processor = time.perf_counter(), time.process_time() - processor
    for table in tables:
        estimates.table(table.name)
    added = time.perf_counter()
    for table in tables:
        estimates.variances(table.name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{cells:,} cells in {len(tables)} tables, base {estimates.base.size:,}: solved in {solved - start:.0f} s, "
        f"{estimates.iterations} steps ({processor / cells * 1e6:.2f} s of processor per million cells), tables "
        f"{added - solved:.0f} s, standard errors {time.perf_counter() - added:.0f} s, peak {peak:.2f} GiB, "
        f"largest rounding {estimates.rounding:.3g}"
    )


def _tables(industries: int) -> list[Observed]:
    random = np.random.default_rng(1)
    states = np.sort(np.concatenate([np.arange(51), random.choice(51, COUNTIES - 51, p=random.dirichlet(np.ones(51)))]))
    places = {"county": np.arange(COUNTIES), "state": states, "nation": np.zeros(COUNTIES)}
    truth = random.gamma(0.3, 30, size=(industries, COUNTIES, SIZES))
    tables = []
    for number, (divisor, place, divided) in enumerate(PROGRAMME):
        groups = _level(industries, divisor)
        positions: tuple[Int32s, ...] = tuple(
            axis.astype(np.int32) for axis in (groups, places[place], np.arange(SIZES) // divided)
        )
        widths = tuple(int(axis.max()) + 1 for axis in positions)
        values: Floats = Sums(positions, widths).up(truth).copy()
        _add_noise(values, 10.0, random)
        tables.append(Observed(f"t{number}", positions, widths, values, np.array(100.0)))
    return tables


def _level(codes: int, divisor: int) -> np.ndarray:
    """Neighbouring groups of unequal sizes, about `divisor` codes each; groups of larger divisors are made of them."""
    groups = np.arange(codes)
    for step in (3, 10, 50, 1000):
        if step > divisor:
            break
        many = max(1, codes // step)
        ends = np.linspace(0, 1, many + 1)[1:] ** 1.5 * (groups.max() + 1)
        groups = np.unique(np.searchsorted(ends, groups, side="right"), return_inverse=True)[1]
    return groups


def _add_noise(values: Floats, sigma: float, random: np.random.Generator) -> None:
    flat = values.reshape(-1)
    for start in range(0, flat.size, 2**22):
        flat[start : start + 2**22] += sigma * random.standard_normal(min(2**22, flat.size - start))


if __name__ == "__main__":
    main()
