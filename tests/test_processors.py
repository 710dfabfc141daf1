"""Other processors, the same bytes: in a process whose NumPy may use nothing that not every processor has."""

import hashlib
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.support.bits import cell_bits
from udfs.lattice import build_table
from udfs.mechanisms.catalogue import build
from udfs.reproducible import exp
from udfs.weights import GaussianWeights, LaplaceWeights, LogWeights

ROOT = Path(__file__).parents[1]
SPECS = [
    {"kind": "gaussian", "sigma": 12},
    {"kind": "gaussian", "sigma": 1.6},
    {"kind": "laplace", "sigma": 0.7},
    {"kind": "log", "a": 1, "sigma": 1e-4},
    {"kind": "log", "a": 0.5, "sigma": 2},
]


def has_beyond_the_base() -> list[str]:
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return found


def digests() -> list[str]:
    """What this process computes: exponentials, tables, and every released column; first, what it may compute with."""
    totals = np.random.default_rng(16).integers(0, 1 << 50, 5_001)
    found = [exp(np.linspace(-700, 700, 30_001)).tobytes()]
    scales = [Fraction(i**4, 7) for i in range(1, 20)]
    families: list[LogWeights] = [kind(scale=scale) for scale in scales for kind in (GaussianWeights, LaplaceWeights)]
    found += [repr((table.starts, table.masses)).encode() for table in map(build_table, families)]
    for spec in SPECS:
        released = build(spec, Fraction(1)).release(totals, cell_bits(len(totals)), Fraction(19, 20))
        found += [getattr(released, name).tobytes() for name in ("value", "lower", "upper", "standard_error")]
    return [str(has_beyond_the_base()), *(hashlib.sha256(part).hexdigest() for part in found)]


def test_processors_without_vector_extensions_compute_the_same_bytes() -> None:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(has_beyond_the_base()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.test_processors"]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    theirs, ours = run.stdout.split("\n")[:-1], digests()
    assert theirs[0] == "[]"  # they did without
    assert theirs[1:] == ours[1:]


if __name__ == "__main__":
    print("\n".join(digests()))
