"""The public sizes of `prdp study compare`: conf/economy/establishment_sizes.csv, of the synthetic economy.

python -m benchmarks.sizes [--records N] [--seed S]
"""

import argparse
from pathlib import Path

import numpy as np

from pipeline.accounting.targets import BUILT_IN
from pipeline.planning.economy import Economy, Figures
from pipeline.planning.economy.firms import Firms
from pipeline.planning.economy.generate import BATCHES_A_NATION, DOMAIN, Batches

RECORDS, SEED = 8_000_000, 1


def main() -> None:
    """Draw the economy's establishments, count them by employment, write."""
    arguments = argparse.ArgumentParser(description="write conf/economy/establishment_sizes.csv")
    arguments.add_argument("--records", type=int, default=RECORDS)
    arguments.add_argument("--seed", type=int, default=SEED)
    given = arguments.parse_args()
    write(BUILT_IN, given.records, given.seed)


def write(target: Path, records: int, seed: int) -> None:
    """Write how many of `records` establishments have each employment."""
    codes = ([line.split(",")[0] for line in source.read_text().splitlines()[1:]] for source in DOMAIN.values())
    firms = Firms(Economy(*codes, Figures()))
    batches = Batches(firms, records=records, count=BATCHES_A_NATION, seed=seed)
    drawn = np.concatenate([batches.draw(batch).employment for batch in range(BATCHES_A_NATION)])
    lines = [f"{value},{count}" for value, count in zip(*np.unique(drawn, return_counts=True), strict=True)]
    target.write_text("\n".join(["value,count", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
