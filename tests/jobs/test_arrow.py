"""Arrow that was kept from loading pandas: frames are had as ever."""

import subprocess
import sys

PROGRAM = """
import sys
from jobs.arrow import do_without_pandas
do_without_pandas()
import numpy as np, pyarrow as pa
table = pa.table({"a": pa.array(np.arange(3)), "b": pa.array(["x", None, "z"])})
assert table["a"].to_numpy().tolist() == [0, 1, 2]
assert "pandas" not in sys.modules
assert table.to_pandas()["b"].isna().tolist() == [False, True, False]
import pandas as pd
assert pa.array(pd.array([1, None], dtype="Int64")).null_count == 1
before = sys.meta_path[:]
do_without_pandas()
assert sys.meta_path == before
"""


def test_frames_are_had_afterwards() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_arrow_loads_pandas_otherwise() -> None:
    """The reason for all this; once Arrow is better, jobs/arrow.py can go."""
    program = "import sys, pyarrow as pa\npa.array([0])\nassert 'pandas' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
