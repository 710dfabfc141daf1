"""What a whole tight curve costs, of every kind that has one: times on one core beside a fixed loop of NumPy's.

The loop takes np.expm1 and a sum of 2¹⁵ doubles LOOPS times, on the same machine just before: some tenths of a
second on a quiet core. Times are of the processor, the best of some rounds, with a family's nodes but without what
is kept for an exponent of stable noise (its density, and the bends of it), which the first curve pays for.

    python -m benchmarks.curves [--rounds N]
"""

import argparse
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from udfs.losses import curve
from udfs.losses.nodes import nodes_of
from udfs.losses.piecewise import pure_exactly
from udfs.losses.stable_nodes import stable_nodes
from udfs.mechanisms.catalogue import build
from udfs.noise.weights import LogWeights

LOOPS, SIZE = 10_000, 1 << 15
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": "1.5", "a": "2.718281828459046"}
SHAPES: dict[str, dict[str, object]] = {
    "generalized_gaussian, p ½": {"kind": "generalized_gaussian", "p": "0.5"},
    "generalized_gaussian, p ¼": {"kind": "generalized_gaussian", "p": "0.25"},
    "exponential_polylog, p 1, d 3": {"kind": "exponential_polylog", "p": 1, "d": 3, "a": 1},
    "exponential_polylog, p 2, d 1.5": POLYLOG,
    "exponential_polylog, lattice: fine": POLYLOG | {"lattice": "fine"},
    "symmetric_stable, α 1": {"kind": "symmetric_stable", "alpha": 1},
    "symmetric_stable, α 1.9": {"kind": "symmetric_stable", "alpha": "1.9"},
}
SCALES = (20, 10**6, 10**9)
KNOTS = 40  # of a table of weights


def main() -> None:
    """Print a line for each kind and scale."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description="Times whole tight curves.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{'kind':<36} {'scale':>13}  knots  a curve, in loops  its seconds  the first's")
    for name, shape in SHAPES.items():
        for scale in SCALES:
            parameter = "gamma" if shape["kind"] == "symmetric_stable" else "sigma"
            _line(name, scale, shape | {parameter: scale, "policy": "tight"}, rounds)
    for scale in SCALES[:2]:
        _line(f"designed, {KNOTS} knots", scale, _designed(scale), rounds)


def _designed(scale: int) -> dict[str, object]:
    """Return a table of the polylog's weights."""
    steps = sorted({0, *(max(i, round(scale * 0.2 * 1.25**i)) for i in range(1, KNOTS))})
    weights = build(POLYLOG | {"sigma": scale}, Fraction(1)).form.noise.weights
    logs = weights.fast(np.array(steps, dtype=np.float64)).round(9).tolist()
    return {"kind": "designed", "weights": {"steps": steps, "log_weights": logs}}


def _line(name: str, scale: int, document: dict[str, object], rounds: int) -> None:
    noise = build(document, Fraction(1)).form.noise
    first = _seconds(lambda: _curve(noise.weights, noise.fineness))
    loop = min(_seconds(_loop) for _ in range(rounds))
    best = min(_seconds(lambda: _curve(noise.weights, noise.fineness)) for _ in range(rounds))
    knots = len(curve.knots(noise.weights, noise.fineness))
    print(f"{name:<36} {scale:>13,} {knots:6} {best / loop:18.2f} {best:12.3f} {first:12.3f}", flush=True)


def _curve(weights: LogWeights, unit: int) -> None:
    for kept in (nodes_of, stable_nodes, curve.knots, curve.tight_loss, pure_exactly):
        kept.cache_clear()
    curve.tight_curve.__wrapped__(weights, unit)


def _loop() -> None:
    x = np.linspace(-1, 1, SIZE)
    for _ in range(LOOPS):
        np.expm1(x).sum()


def _seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
