"""Child process: a whole run on a Dask cluster, with failures of all kinds, and all that it and its workers say.

Arguments: an empty folder, a number that stands in the microdata and in the totals, and a key of 32 characters. The
microdata hold the number as a value, as a malformed code, in a damaged file and in a cell that is no number.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from traceback import print_exc

import pyarrow as pa
from distributed import Client, LocalCluster

from pipeline.base.canonical import code_digest
from pipeline.engines.dask import DaskEngine
from pipeline.engines.tasks import NoiseTask, SumTask
from pipeline.microdata.source import chunks, find
from pipeline.storage.paths import locate
from tests.support.cells import blocks, records, spec, write
from udfs.noise.keystream import SecretKey


def tried(name: str, run: Callable[[], object]) -> None:
    """Run, and tell everything of an error."""
    try:
        run()
        print(f"{name}: done")
    except Exception as error:
        print(f"{name}: {error!r} {error}")
        print_exc()


def main(folder: Path, number: str, key: SecretKey) -> None:
    """Run everything, with all logs on."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    good = records(100)
    row = {"id": [number], "naics": ["311111"], "county": ["01001"], "emp": [int(number)], "pay": [int(number)]}
    write(folder / "good", [pa.concat_tables([good, pa.table(row).cast(good.schema)])])
    bad = {"naics": [number], "county": [number], "emp": [-int(number)], "pay": [int(number) + 0.1]}
    write(folder / "bad", [good.select(list(bad)), pa.table(bad)])
    write(folder / "types", [pa.table({**bad, "naics": [int(number)]})])
    write(folder / "bytes", [pa.table({**bad, "naics": pa.array([number.encode() + b"\xff"]).view(pa.string())})])
    (folder / "ragged").mkdir()
    (folder / "ragged" / "a.csv").write_text(f"naics,county,emp,pay\n1,2,3,4\n{number}\n")
    staged, unwritable = blocks(folder / "out", 4, total=int(number)), blocks(folder / "no", 4, total=int(number))
    (folder / "no").rmdir()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        for engine in (DaskEngine(cluster.scheduler_address), DaskEngine()):
            for name in ("good", "bad", "types", "bytes", "ragged"):
                tried(name, partial(engine.sums, list(chunks(find(locate(folder / name)))), spec()))
            tried("staged", partial(engine.stage, staged, key))
            tried("unwritable", partial(engine.stage, unwritable, key))
        with Client(cluster, set_as_default=False) as client:
            tried("other build", client.submit(partial(NoiseTask("sha256:other"), key=key), staged[0]).result)
            tried(
                "other build",
                client.submit(SumTask(spec(), "sha256:other"), next(chunks(find(locate(folder / "good"))))).result,
            )
        print(cluster.get_logs())
    print(
        repr(staged),
        str(staged),
        repr(key),
        str(key),
        f"{key}",
        repr(NoiseTask(code_digest())),
        repr(SumTask(spec(), "")),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], SecretKey(sys.argv[3].encode()))
