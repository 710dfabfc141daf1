"""What people see: progress on stderr, and the published tables with a few rows."""

import sys
import time

import pyarrow.parquet as pq

from pipeline.release import Published

ROWS_SHOWN = 4


class Progress:
    """Says on stderr what is being done and how long the run has taken so far (for the operator alone)."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, stage: str) -> None:
        """Name the stage that begins."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {stage}", file=sys.stderr, flush=True)


def show_published(published: Published) -> None:
    """Print where the release and its tables are, and the first rows of each table."""
    print(f"release {published.release}, attempt {published.attempt}: {published.state}")
    print(f"manifest {published.out / published.release / 'release.json'}")
    for query, table in published.tables.items():
        print(f"\n{query}: {table['rows']:,} rows in {table['path']}")
        with pq.ParquetFile(f"{table['path']}/part-00000.parquet") as file:
            print(next(file.iter_batches(ROWS_SHOWN)).to_pandas().to_string(index=False))
