"""Other processors, the same bytes: in a process whose NumPy may use nothing that not every processor has."""

import hashlib
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.support.bits import cell_bits
from tests.support.guarantee import adds
from tests.support.kinds import REGISTRY
from udfs.mechanisms.catalogue import CATALOGUE, GroupwiseNoisy, build
from udfs.noise.lattice import build_table
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import exp

ROOT = Path(__file__).parents[2]
SPECS = [{"kind": kind, **given} for kind, known in REGISTRY.items() for given in known.shipped]
INTERVAL = Fraction(19, 20)
CURVES = [  # slopes of whole numbers, log-ratios of 2, and losses that are the paper's: what last bits might decide
    {"kind": "generalized_gaussian", "p": 0.75, "sigma": 7, "policy": "tight"},
    {"kind": "generalized_gaussian", "p": 0.5, "sigma": 20, "policy": "tight"},
    {"kind": "generalized_gaussian", "p": 1, "sigma": 3.3, "policy": "tight"},
    {"kind": "exponential_polylog", "p": 2, "d": 4.7, "a": 2.718281828459046, "sigma": 0.12, "policy": "tight"},
]


def has_beyond_the_base() -> list[str]:
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return found


def driven() -> bytes:
    """The mechanisms as the driver pickles them: with their tables and spreads, which workers must not compute anew."""
    mechanisms = [build(spec, Fraction(1)) for spec in SPECS]
    for m in mechanisms:
        m.release(np.zeros(1, dtype=np.int64), cell_bits(1), INTERVAL)
        noises = [m.lattice_noise, *([m.factor] if isinstance(m, GroupwiseNoisy) else [])]
        assert all({"table", "half_widths"} <= set(vars(noise)) for noise in noises)
        assert "noise_variance" in vars(m.lattice_noise) or not adds(m)
    return pickle.dumps(mechanisms)


def digests(mechanisms: bytes) -> list[str]:
    """What this process computes: exponentials, tables, and every released column; first, what it may compute with."""
    totals = np.random.default_rng(16).integers(0, 1 << 50, 5_001)
    found = [exp(np.linspace(-700, 700, 30_001)).tobytes()]
    scales = [Fraction(i**4, 7) for i in range(1, 20)]
    families: list[LogWeights] = [kind(scale=scale) for scale in scales for kind in (GaussianWeights, LaplaceWeights)]
    found += [repr((table.starts, table.masses)).encode() for table in map(build_table, families)]
    found += [repr(build(spec, Fraction(1)).loss_curve).encode() for spec in CURVES]
    for m in pickle.loads(mechanisms):
        released = m.release(totals, cell_bits(len(totals)), INTERVAL)
        found += [getattr(released, name).tobytes() for name in ("value", "lower", "upper", "standard_error")]
    return [str(has_beyond_the_base()), *(hashlib.sha256(part).hexdigest() for part in found)]


def test_processors_without_vector_extensions_compute_the_same_bytes() -> None:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(has_beyond_the_base()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.numbers.test_processors"]
    mechanisms = driven()
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True, input=mechanisms)
    theirs, ours = run.stdout.decode().split("\n")[:-1], digests(mechanisms)
    assert theirs[0] == "[]"  # they did without
    assert theirs[1:] == ours[1:]


def test_every_kind_is_compared() -> None:
    assert {spec["kind"] for spec in SPECS} == set(CATALOGUE)


if __name__ == "__main__":
    print("\n".join(digests(sys.stdin.buffer.read())))
