"""How fast the kernels are, on one core within one process: each beside a yardstick that is timed just before it.

    python -m benchmarks.kernels [--kernels NAME …] [--rounds N]

    noise        draws of every family, and whole mechanisms, beside Generator.normal rounded to integers: fast, and
                 neither exact nor addressable by cell
    losses       losses of records in six queries (`prdp diagnose`), beside np.log1p of as many numbers
    curves       a tight policy's whole curve, beside 10,000 times np.expm1 and a sum of 2¹⁵ doubles
    firms        the loss of a firm of more and more rows without a cell, beside one of 1,000 rows
    allocation   choosing the scales of 20 tables at once, beside those of 5

A ratio is the kernel's time over the yardstick's, of processors, the best of some rounds.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.calibrate import Family
from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference
from pipeline.accounting.targets import Target
from pipeline.planning.allocation import allocate
from udfs.losses import curve
from udfs.losses.nodes import nodes_of, pure_exactly, stable_nodes
from udfs.mechanisms.catalogue import build
from udfs.noise.heavy_weights import CauchyWeights, GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.keystream import CellBits, SecretKey
from udfs.noise.lattice import build_table, draw_noise
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.records.influence import QueryLoss
from udfs.records.statistics import Sum

DRAWS = 1_000_000
ONE = Fraction(1)
FAMILIES: dict[str, Callable[[Fraction], LogWeights]] = {
    "gaussian": lambda s: GaussianWeights(scale=s),
    "laplace": lambda s: LaplaceWeights(scale=s),
    "generalized, p ½": lambda s: GeneralizedGaussianWeights(p=Fraction(1, 2), scale=s),
    "polylog, p 1, d 2": lambda s: PolylogWeights(p=ONE, d=Fraction(2), a=Fraction(3), scale=s),
    "polylog, p 3½, d 1": lambda s: PolylogWeights(p=Fraction(7, 2), d=ONE, a=Fraction(13), scale=s),
    "stable, α 1": lambda s: CauchyWeights(scale=s),
    "stable, α 1½": lambda s: StableWeights(alpha=Fraction(3, 2), scale=s),
}
SCALES = ("1/3", "10", str(10**6), str(10**12))
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": "1.5", "a": "2.718281828459046", "sigma": 20}
MECHANISMS: tuple[dict[str, object], ...] = (
    {"kind": "gaussian", "sigma": 10},
    {"kind": "laplace", "sigma": 10},
    {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5},
    POLYLOG,
    {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 10},
    {"kind": "unit_splitting", "threshold": 10, "rho": 0.5},
    {"kind": "root", "k": 4, "a": 1, "sigma": 0.15},
    {"kind": "log", "a": 1, "sigma": 0.1},
    {"kind": "log", "a": 1, "sigma": 0.1, "noise": "laplace"},
    {"kind": "groupwise_log", "a": 5, "sigma": 0.1},
    {"kind": "groupwise_noisy", "r": 0.1, "sigma": 3},
)
CURVES: dict[str, dict[str, object]] = {
    "generalized_gaussian, p ½": {"kind": "generalized_gaussian", "p": "0.5"},
    "generalized_gaussian, p ¼": {"kind": "generalized_gaussian", "p": "0.25"},
    "exponential_polylog, p 1, d 3": {"kind": "exponential_polylog", "p": 1, "d": 3, "a": 1},
    "exponential_polylog, p 2, d 1.5": POLYLOG,
    "exponential_polylog, lattice: fine": POLYLOG | {"lattice": "fine"},
    "symmetric_stable, α 1": {"kind": "symmetric_stable", "alpha": 1},
    "symmetric_stable, α 1.9": {"kind": "symmetric_stable", "alpha": "1.9"},
}

Pair = tuple[str, Callable[[], object], Callable[[], object]]  # what it is, the kernel, the yardstick


def noise(random: np.random.Generator) -> Iterator[Pair]:
    """Draws of families at several scales, and releases of mechanisms with their intervals."""
    bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.arange(DRAWS, dtype=np.uint64))
    totals = random.integers(0, 1 << 30, DRAWS)

    def plain() -> object:
        return np.rint(random.normal(0, 10, DRAWS)).astype(np.int64)

    for family, weights in FAMILIES.items():
        for scale in SCALES:
            yield (
                f"{family}, scale {scale}",
                partial(draw_noise, build_table(weights(Fraction(scale))), bits, DRAWS),
                plain,
            )
    for given in MECHANISMS:
        mechanism = build(dict(given), ONE)
        yield _named(given), partial(mechanism.release, totals, bits, Fraction(19, 20)), plain


def losses(random: np.random.Generator) -> Iterator[Pair]:
    """Losses of influences as skewed as establishments': most lie in the kernel's table, the giants are computed."""
    influences = np.exp(random.normal(5.5, 2.0, DRAWS)).astype(np.int64)
    numbers = influences.astype(np.float64)
    everywhere = {0: np.zeros(2, dtype=np.int64)}
    for given in MECHANISMS[:8]:
        query = QueryLoss("query", 0, "payroll", ONE, everywhere, (build(dict(given), ONE),))
        yield _named(given), partial(query.loss, influences, None), partial(np.log1p, numbers)


def curves(_: np.random.Generator) -> Iterator[Pair]:
    """Whole curves, with a family's nodes."""
    x = np.linspace(-1, 1, 1 << 15)

    def loop() -> None:
        for _ in range(10_000):
            np.expm1(x).sum()

    def whole(weights: LogWeights, unit: int) -> None:
        for kept in (nodes_of, stable_nodes, curve.knots, curve.tight_loss, pure_exactly):
            kept.cache_clear()
        curve.tight_curve.__wrapped__(weights, unit)

    for name, shape in CURVES.items():
        for scale in (20, 10**6, 10**9):
            parameter = "gamma" if shape["kind"] == "symmetric_stable" else "sigma"
            form = build(shape | {parameter: scale, "policy": "tight"}, ONE).form
            yield f"{name}, scale {scale:,}", partial(whole, form.noise.weights, form.noise.fineness), loop


def firms(_: np.random.Generator) -> Iterator[Pair]:
    """Bounded by the number of lots, whatever the number of rows."""

    def of(rows: int) -> Callable[[], object]:
        firm = Reference(Reference.of([{"x": 7 * i + 3} for i in range(rows)]).records, True)
        return partial(policy.loss_at, firm)

    for given in ({"kind": "gaussian", "sigma": 100}, {"kind": "log", "a": 10, "sigma": 1}, POLYLOG):
        cells = Cells(("county",), 3000)
        query = QueryPolicy(str(given["kind"]), Sum("x"), build(dict(given), ONE), None, cells)
        policy = PolicySum((query,), (frozenset({0}),))
        for rows in (10, 10_000):
            yield f"{given['kind']}, {rows:,} rows", of(rows), of(1000)


def allocation(_: np.random.Generator) -> Iterator[Pair]:
    """Scales of many tables under two limits."""
    yield "20 tables", partial(allocate, _problem(20)), partial(allocate, _problem(5))


def _problem(tables: int) -> Problem:
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("gaussian", {}),
        ("laplace", {"policy": "tight"}),
        ("exponential_polylog", {"p": 1, "d": 4, "a": 3, "policy": "tight"}),
        ("generalized_gaussian", {"p": "0.25", "policy": "tight"}),
        ("log", {"a": 100}),
    )
    target = Target.of("standard_error", standard_error=ONE, total=Fraction(500))
    queries, unknowns = [], []
    for i in range(tables):
        kind, fixed = kinds[i % len(kinds)]
        family = Family(kind, "sigma", tuple(sorted(fixed.items())), ONE, may_be_narrow=False)
        start = family.at(family.start)
        assert start is not None
        queries.append(QueryPolicy(f"q{i}", Sum(f"m{i}"), start))
        unknowns.append(Unknown(label=f"q{i}", members={i: family}, error=target, weight=Fraction(1 + i % 7)))
    policy = PolicySum(tuple(queries), (frozenset(range(tables)),))
    limits = [
        (Reference.of({f"m{i}": size for i in range(tables)}), Fraction(rho)) for size, rho in ((10, 2), (5000, 100))
    ]
    return Problem(policy, [Bound(Limit(at, rho)) for at, rho in limits], unknowns)


KERNELS = {kernel.__name__: kernel for kernel in (noise, losses, curves, firms, allocation)}


def main() -> None:
    """Time every kernel beside its yardstick, and print both and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description="Kernels beside yardsticks.")
    parser.add_argument(
        "--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), metavar="NAME", help=", ".join(KERNELS)
    )
    parser.add_argument("--rounds", type=int, default=5, help="the best counts (default: 5)")
    given = parser.parse_args()
    print(f"{'':<50}{'kernel, ms':>12}{'yardstick, ms':>15}{'ratio':>9}")
    for name in given.kernels:
        print(name)
        for what, kernel, yardstick in KERNELS[name](np.random.default_rng(1)):
            kernel(), yardstick()  # build tables and constants
            pairs = [(_seconds(kernel), _seconds(yardstick)) for _ in range(given.rounds)]
            ours, plain = (min(times) for times in zip(*pairs, strict=True))
            print(f"  {what:<48}{ours * 1e3:12.2f}{plain * 1e3:15.2f}{ours / plain:9.2f}", flush=True)


def _named(given: dict[str, object]) -> str:
    return " ".join(f"{name} {value}" for name, value in given.items()).removeprefix("kind ")


def _seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
