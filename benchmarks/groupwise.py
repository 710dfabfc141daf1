"""Counts with relative error, all at the same one: the tables and the picture of docs/noise.md.

    python -m benchmarks.groupwise

Every mechanism is given the noise with which the mean absolute error is a tenth of the count at one count, and less
than a tenth at all larger ones; then they are compared by what a record loses in groups of other sizes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, pi, sqrt
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.base.plots import family_styles
from tests.support.groupwise_analysis import GroupwiseDirect, infinite_from
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import DIRECT, GroupwiseLog, build
from udfs.numbers.exact import exact, up_text

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "groupwise" / "figures.txt"
MARKS = re.compile(r"(<!-- made by benchmarks.groupwise -->\n).*?(<!-- end -->)", re.DOTALL)
R = 0.1
SHOWN = (1, 10, 100, 1_000, 10_000)
ORDER = 2.0  # up to which the loss of noise in proportion to the count is shown
OFFSETS = {1: ("0.1", "1", "10"), 10: ("1", "10", "100")}
ORDERS_AT = (1, 2, 10, 100, 1_000)


@dataclass(frozen=True)
class Contender:
    """One row of the table, one line of the picture."""

    name: str
    error: Callable[[int], float]
    loss: Callable[[int], float]
    mechanism: Mapping[str, object]


def main() -> None:
    """Calibrate, compare, write."""
    parts = [f"\n{_table(least)}" for least in OFFSETS]
    text = "\n".join([*parts, "Noise in proportion to the count, r = 0.1:\n", _orders()])
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda found: found[1] + text + found[2], page), encoding="utf-8")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    (DOCS / "groupwise").mkdir(exist_ok=True)
    _picture().savefig(DOCS / "groupwise" / "comparison.png", dpi=100, metadata={"Software": None})


def contenders(least: int) -> list[Contender]:
    """Return all mechanisms with a mean absolute error of R·least at the count `least`."""
    noisy = R / 2 * sqrt(pi / 2)  # half of the error of large counts
    found = [
        _contender({"kind": "gaussian"}, least),
        _contender({"kind": "groupwise_noisy", "r": f"{noisy:.4g}"}, least),
    ]
    found += [_contender({"kind": "groupwise_log", "a": a}, least) for a in OFFSETS[least]]
    return [*found, _direct()]


def _direct() -> Contender:
    direct = GroupwiseDirect(r=exact(f"{R * sqrt(pi / 2):.4g}"))  # E|N(0, r²x²)| = r·x·√(2/π)
    share = float(direct.r) * sqrt(2 / pi)

    def loss(x: int) -> float:
        return direct.loss_up_to(ORDER, x - 1)

    name = f"groupwise_direct, r {float(direct.r):g}: no guarantee, up to order {ORDER:g} only"
    return Contender(name, lambda x: share * x, loss, {"kind": DIRECT})


def _contender(spec: dict[str, str], least: int) -> Contender:
    m = _calibrated(spec, least)

    def loss(x: int) -> float:
        return float(m.group_loss_at(Fraction(x)) if isinstance(m, GroupwiseLog) else m.loss_at(Fraction(1)))

    given = ", ".join(f"{name} {value}" for name, value in m.describe().items() if name not in ("kind", "policy"))
    return Contender(f"{m.kind}, {given}", lambda x: m.mean_absolute_error(float(x)), loss, m.describe())


def _calibrated(spec: dict[str, str], least: int) -> Mechanism:
    """Return the mechanism with the largest sigma of 4 digits whose error at `least` is R·least at most."""
    low, high = 1e-4, 1e3
    for _ in range(50):
        sigma = sqrt(low * high)
        error = build(spec | {"sigma": repr(sigma)}, Fraction(1)).mean_absolute_error(float(least))
        low, high = (sigma, high) if error <= R * least else (low, sigma)
    digits = 3 - int(np.floor(np.log10(low)))
    return build(spec | {"sigma": f"{np.floor(low * 10**digits) / 10**digits:.{max(digits, 0)}f}"}, Fraction(1))


def _table(least: int) -> str:
    heads = [f"at most {R:.0%} from a count of {least} on", *(f"loss at {x:,}" for x in SHOWN)]
    heads += [f"error at {x:,}, in %" for x in SHOWN[1:]]
    lines = [_row(heads), "|---|" + "---:|" * (len(heads) - 1)]
    for c in contenders(least):
        losses = [_loss(c.loss(x)) for x in SHOWN]
        lines.append(_row([c.name, *losses, *(f"{100 * c.error(x) / x:.3g}" for x in SHOWN[1:])]))
    return "\n".join(lines) + "\n"


def _loss(rho: float) -> str:
    return up_text(Fraction(rho), 3) if isfinite(rho) else "infinite"


def _orders() -> str:
    direct = GroupwiseDirect(r=exact("0.1"))
    heads = [
        "counts",
        "infinite from order",
        "the paper's bound holds up to order",
        *(f"loss up to {o}" for o in (2, 5)),
    ]
    lines = [_row(heads), "|---|" + "---:|" * (len(heads) - 1), _row(["0 and 1", "1", "none", "infinite", "infinite"])]
    for x in ORDERS_AT:
        claim = f"{direct.claim_holds_to(x):.4g}"
        losses = (_loss(direct.loss_up_to(o, x)) for o in (2.0, 5.0))
        lines.append(_row([f"{x:,} and {x + 1:,}", f"{float(infinite_from(x)):.4g}", claim, *losses]))
    return "\n".join(lines) + "\n\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _picture() -> Figure:
    """Losses and relative errors over counts, on logarithmic axes, for both starts."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    counts = sorted({round(x) for x in np.geomspace(1, 10_000, 60)})
    for (left, right), least in zip(figure.subplots(2, 2), OFFSETS, strict=True):
        drawn = contenders(least)
        for c, style in zip(drawn, family_styles([c.mechanism for c in drawn]), strict=True):
            losses = np.array([c.loss(x) for x in counts])
            known = np.isfinite(losses)
            left.loglog(np.array(counts)[known], losses[known], label=c.name, **style)
            right.loglog(counts, [100 * c.error(x) / x for x in counts], **style)
        _finish(left, right, least)
    return figure


def _finish(left: Axes, right: Axes, least: int) -> None:
    right.axhline(100 * R, color="black", lw=0.8)
    right.axvline(least, color="black", lw=0.8)
    left.set_ylabel("loss of a record of the group (rho)")
    right.set_ylabel("mean absolute error, % of the count")
    for axes in (left, right):
        axes.set_xlabel("true count of the group")
        axes.grid(alpha=0.2)
    left.set_title(f"error at most {R:.0%} from a count of {least} on", fontsize=9)
    left.legend(frameon=False, fontsize=7, loc="lower left")


if __name__ == "__main__":
    main()
