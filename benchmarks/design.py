"""How long a design takes, how fast its noise is drawn, and what it gains under equal limits over every other kind.

python -m benchmarks.design                 seconds of designs; draws a second beside other kinds, in the same run
python -m benchmarks.design --tables        writes the tables of docs/design.md: some minutes
"""

import argparse
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

from pipeline.base.plain import number
from pipeline.planning.study import design as search
from pipeline.planning.study.comparison import FAMILIES
from pipeline.planning.study.design import Design, Wish, design
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import CellBits, SecretKey
from udfs.numbers.exact import exact

PAGE = Path(__file__).parents[1] / "docs" / "design" / "figures.txt"
MARKS = re.compile(r"(<!-- made by benchmarks.design -->\n).*?(<!-- end -->)", re.DOTALL)
E = "2.718281828459046"
NAMED = {"kind": "exponential_polylog", "p": 2, "a": E, "policy": "tight"}
OWN = NAMED | {"d": "1.5", "sigma": 4}
SPREAD = (1, 2, 3, 5, 8, 13, 20, 40, 70, 120, 200, 400)
# limits: what a named noise loses itself at the references of a plan, or the sizes of a study
REFERENCES = {
    "employment of conf/plans/cbp-synthetic.yaml": (NAMED | {"d": "1.5", "sigma": 20}, (10, 5000)),
    "sizes of conf/studies/slides.yaml, variance 2": (NAMED | {"d": 1, "sigma": "0.5751"}, (1, 10, 100, 1000, 10000)),
}
WIDE = {10: "0.12", 100: "1", 10000: "10"}
TOTALS = (0, 100, 1000, 10_000, 100_000, 1_000_000)
KNOTS = ((3, 1.6, 4.0), (5, 1.3, 2.0), (10, 1.12, 1.25), (20, 1.06, 1.12))  # parts, growth, growth beside limits
DRAWS = 1_000_000
ROUNDS = 3
SCALES = (-9.0, 9.0)  # decimal exponents of scales that are looked at
HALVINGS = 18
SCALE = {"symmetric_stable": "gamma", "unit_splitting": "rho"}


def main() -> None:
    """Time designs and draws, or write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design", description="Times designs; tables of gains.")
    parser.add_argument("--tables", action="store_true", help="write what designs gain into docs/design.md")
    if parser.parse_args().tables:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(MARKS.sub(lambda found: found[1] + tables() + found[2], page), encoding="utf-8")
    else:
        _time()


def limits_of(mechanism: Mechanism, influences: Sequence[int]) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return what a mechanism loses itself at influences, as limits."""
    return tuple((Fraction(x), mechanism.loss_at(Fraction(x))) for x in influences)


def within(kind: str, shape: Mapping[str, str], wish: Wish) -> Mechanism | None:
    """Return the mechanism of a shape with the least noise within the limits, in four digits; None where none is."""
    name = SCALE.get(kind, "sigma")
    rising = name == "rho"  # of loss

    def at(exponent: float) -> Mechanism:
        return build({"kind": kind, **shape, name: exact(f"{10**exponent:.3e}")}, wish.step)

    def keeps(exponent: float) -> bool:
        return all(at(exponent).loss_at(x) <= rho for x, rho in wish.limits)

    low, high = SCALES if not rising else SCALES[::-1]
    best = None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        try:
            if keeps(middle):
                best, high = at(middle), middle
            else:
                low = middle
        except (ParameterError, ArithmeticError):
            low, high = (low, middle) if middle > 0 else (middle, high)
    return best


def kinds(wish: Wish) -> Iterator[tuple[str, Mechanism]]:
    """Yield every kind and shape within the limits, with what it is called."""
    for kind, grid in FAMILIES:
        if kind.startswith("groupwise"):
            continue  # for counts
        for values in product(*grid.values()):
            found = within(kind, dict(zip(grid, values, strict=True)), wish)
            if found is not None:
                noise = found.describe().get("noise")
                yield kind if noise is None else f"{kind}, {noise} noise", found


def error(mechanism: Mechanism, total: float) -> float:
    """Return the standard error at a total, infinite or not a number where there is none."""
    try:
        return math.sqrt(mechanism.variance(total))
    except (ArithmeticError, ValueError):
        return math.inf


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown whose first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables() -> str:
    """Return all tables."""
    parts = []
    for name, (spec, influences) in REFERENCES.items():
        wish = Wish(limits_of(build(spec, Fraction(1)), influences))
        parts.append(_beside_every_kind(f"Limits: {name}", wish))
    wide = Wish(tuple((Fraction(x), Fraction(rho)) for x, rho in WIDE.items()))
    parts.append(_beside_every_kind("Limits that rise over decades", wide))
    parts.append(_own_policy())
    parts.append(_knots(wide))
    return "\n".join(parts)


def _limits(wish: Wish) -> str:
    return ", ".join(f"{x}:{number(float(rho))}" for x, rho in wish.limits)


def _beside_every_kind(title: str, wish: Wish) -> str:
    found = design(wish)
    best: dict[tuple[str, int], Mechanism] = {}
    for name, mechanism in kinds(wish):
        for total in TOTALS:
            known = best.get((name, total))
            if known is None or error(mechanism, total) < error(known, total):
                best[name, total] = mechanism
    rows = [_errors("**designed**", [error(found.mechanism, 0.0)] * len(TOTALS))]
    rows += [
        _errors(name, [error(best[name, total], total) for total in TOTALS])
        for name in dict.fromkeys(n for n, _ in best)
    ]
    bound = "" if not found.lower_bound else f" No additive noise has less than {number(found.lower_bound**0.5)}."
    return (
        f"*{title}* ({_limits(wish)}): standard errors at a total, each kind with its best shape there.{bound}\n\n"
        + table(["kind", *(f"{total:,}" for total in TOTALS)], rows)
    )


def _errors(name: str, errors: Sequence[float]) -> list[str]:
    return [name, *(number(each) if math.isfinite(each) else "none" for each in errors)]


def _own_policy() -> str:
    named = build(OWN, Fraction(1))
    rows = []
    for influences in ((10, 40, 200), SPREAD):
        for minimise in ("variance", "mean_absolute_error"):
            wish = Wish(limits_of(named, influences), minimise)
            found = design(wish)
            rows.append([", ".join(map(str, influences)), minimise.replace("_", " "), *_gain(found, named)])
    return (
        "*Limits that are a named noise's own losses* (exponential polylogarithmic, p = 2, d = 1.5, a = e, σ = 4), "
        "at few influences and at many:\n\n"
        + table(["influences", "minimised", "named", "designed", "less", "lower bound"], rows)
    )


def _gain(found: Design, named: Mechanism) -> list[str]:
    before, after = found.wish.error(named), found.wish.error(found.mechanism)
    return [
        number(before),
        number(after),
        f"{100 * (1 - after / before):.1f} %",
        number(found.lower_bound) if found.lower_bound else "none",
    ]


def _knots(wide: Wish) -> str:
    rows = []
    for wish in (Wish(limits_of(build(OWN, Fraction(1)), (10, 40, 200))), wide):
        for parts, growth, beside in KNOTS:
            with patch.multiple(search, PARTS=parts, GROWTH=growth, MIRRORED=beside):
                found = design(wish)
            count = len(found.mechanism.weights.weights.steps)
            after, bound = wish.error(found.mechanism), found.lower_bound or math.nan
            rows.append([_limits(wish), str(count), number(after), number(bound), f"{100 * (after / bound - 1):.2g} %"])
    return "*Knots*: the variance, and its lower bound from what was found.\n\n" + table(
        ["limits", "knots", "variance", "lower bound", "above it at most"], rows
    )


def _time() -> None:
    wishes = {
        "10:0.12, 100:1, 10000:10": WIDE,
        "10:1.584, 40:7.108, 200:21.02": {10: "1.584", 40: "7.108", 200: "21.02"},
    }
    for name, limits in wishes.items():
        start = time.perf_counter()
        found = design(Wish(tuple((Fraction(x), Fraction(rho)) for x, rho in limits.items())))
        above = found.wish.error(found.mechanism) / (found.lower_bound or math.nan) - 1
        print(f"design {name:<32} {time.perf_counter() - start:7.1f} s, at most {100 * above:.2g} % above the least")
    bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.arange(DRAWS, dtype=np.uint64))
    totals = np.random.default_rng(1).integers(0, 1 << 30, DRAWS)
    others = {"gaussian": {"kind": "gaussian", "sigma": 6}, "exponential_polylog": OWN}
    contenders = {name: build(spec, Fraction(1)) for name, spec in others.items()} | {"designed": found.mechanism}
    draw = {name: partial(each.release, totals, bits, Fraction(19, 20)) for name, each in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in draw}
    for _ in range(1 + ROUNDS):  # the first builds tables
        for name, run in draw.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    least = {name: min(some[1:]) for name, some in seconds.items()}
    for name, best in least.items():
        print(f"release, {name:<22} {DRAWS / best / 1e6:6.2f} million/s, {least['gaussian'] / best:.2f} of gaussian")


if __name__ == "__main__":
    main()
