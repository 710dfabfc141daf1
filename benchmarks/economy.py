"""The generated economy beside the real table: the tables and pictures of docs/economy.md.

    python -m benchmarks.economy [--records N] [--seed S]

Generates, then writes the tables of docs/economy/figures.txt between its two marks, and the pictures. Reads conf/ only.
"""

import argparse
import re
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.planning.economy import Figures
from pipeline.planning.economy.generate import generate
from tests.support.economy import DIVIDED, MEASURES, SIZES, TABLE, generated, read, real

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "economy" / "figures.txt"
MARKS = re.compile(r"(<!-- made by benchmarks.economy -->\n).*?(<!-- end -->)", re.DOTALL)
TAIL = (100, 1_000, 2_500, 5_000, 10_000, 50_000)
COLOURS = {"real": "#888888", "generated": "#1f77b4"}


def main() -> None:
    """Generate, compare, write."""
    arguments = argparse.ArgumentParser(description="write the figures of docs/economy.md")
    arguments.add_argument("--records", type=int, default=8_000_000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="prdp-economy-") as folder:
        records = read(generate(given.records, given.seed, Path(folder) / "data").microdata)
    employment = np.sort(records["employment"].to_numpy())
    text = "\n".join(
        [
            f"\n{len(records):,} records of seed {given.seed}.\n",
            "Shares by size class of the firm, in percent, over the 16 sectors that the table divides:\n",
            _shares(records, "size"),
            "Shares by sector, in percent:\n",
            _shares(records, "sector"),
            _states(records),
            "Firms by size class, a firm counted once in each of those sectors where it has establishments:\n",
            _firms(records),
            "The tail:\n",
            _tail(employment),
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda found: found[1] + text + found[2], page), encoding="utf-8")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    _save(_picture_of_shares(records), "shares")
    _save(_picture_of_tail(employment, _branches(records)), "tail")


def _shares(records: pd.DataFrame, by: str) -> str:
    ours, theirs = generated(records, by), real(by)
    order = list(SIZES) if by == "size" else list(theirs.index)
    lines = [_row([by, *(f"{measure}: real | generated" for measure in MEASURES)]), "|---|" + "---:|" * 6]
    for code in order:
        cells = [
            f"{100 * frame.loc[code, measure] / frame[measure].sum():.2f}"
            for measure in MEASURES
            for frame in (theirs, ours)
        ]
        lines.append(_row([code, *cells]))
    return "\n".join(lines) + "\n"


def _states(records: pd.DataFrame) -> str:
    ours, theirs = generated(records, "state"), real("state")
    ratios = (ours / ours.sum()) / (theirs / theirs.sum())
    found = ", ".join(
        f"{measure} {100 * (ratios[measure].min() - 1):+.1f} to {100 * (ratios[measure].max() - 1):+.1f} %"
        for measure in MEASURES
    )
    return f"The 51 states' shares differ from the real ones by: {found}.\n"


def _branches(records: pd.DataFrame) -> pd.Series:
    """Return by size class how many firms there are, one counted in each divided sector where it is."""
    divided = records.loc[~records["sector"].isin(DIVIDED), ["firm_id", "sector", "size"]]
    return divided.drop_duplicates(["firm_id", "sector"])["size"].value_counts().reindex(list(SIZES), fill_value=0)


def _real_branches() -> pd.Series:
    table = pd.read_csv(TABLE, dtype={"state": str, "sector": str})
    table = table[(table["state"] == "00") & (table["size"] != "total")]
    return table.groupby("size")["firms"].sum().reindex(list(SIZES))


def _firms(records: pd.DataFrame) -> str:
    ours, theirs = _branches(records), _real_branches()
    lines = [_row(["size", "real, in %", "generated, in %", "establishments a firm: real", "generated"])]
    lines.append("|---|" + "---:|" * 4)
    establishments = (real("size")["establishments"] / theirs, generated(records, "size")["establishments"] / ours)
    for size in SIZES:
        shares = (f"{100 * frame[size] / frame.sum():.2f}" for frame in (theirs, ours))
        lines.append(_row([size, *shares, *(f"{mean[size]:.2f}" for mean in establishments)]))
    return "\n".join(lines) + "\n"


def _tail(employment: np.ndarray) -> str:
    lines = [_row(["employees at least", "establishments", "of a million", "their share of employment, in %"])]
    lines.append("|---:|" + "---:|" * 3)
    for least in TAIL:
        giants = employment[np.searchsorted(employment, least) :]
        share = 100 * giants.sum() / employment.sum()
        lines.append(
            _row([f"{least:,}", f"{len(giants):,}", f"{1e6 * len(giants) / len(employment):.1f}", f"{share:.2f}"])
        )
    return "\n".join(lines) + f"\n\nThe largest establishment has {employment[-1]:,} employees.\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _picture_of_shares(records: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, (by, measure) in zip(
        figure.subplots(2, 3).flat, ((by, measure) for by in ("size", "sector") for measure in MEASURES), strict=True
    ):
        _bars(axes, generated(records, by)[measure], real(by)[measure], list(SIZES) if by == "size" else None)
        axes.set_title(f"{measure} by {'size class of the firm' if by == 'size' else by}", fontsize=9)
    figure.axes[0].legend(frameon=False)
    figure.supylabel("share in %", fontsize=9)
    return figure


def _bars(axes: Axes, ours: pd.Series, theirs: pd.Series, order: list[str] | None) -> None:
    codes = order or list(theirs.index)
    for shift, (name, sums) in zip((-0.2, 0.2), (("real", theirs), ("generated", ours)), strict=True):
        axes.bar(np.arange(len(codes)) + shift, 100 * (sums / sums.sum())[codes], 0.4, label=name, color=COLOURS[name])
    axes.set_xticks(range(len(codes)), codes, rotation=90 if order is None else 45, fontsize=7)


def _picture_of_tail(employment: np.ndarray, branches: pd.Series) -> Figure:
    """Survival functions on logarithmic axes: establishments, and firms by the classes that the table has."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = np.unique(np.geomspace(1, employment[-1], 300).astype(int))
    share = 1 - np.searchsorted(employment, sizes) / len(employment)
    left.loglog(sizes, share, color=COLOURS["generated"], label="generated establishments")
    index, anchor = Figures().tail_index, 1_000
    line = np.array([300.0, 50_000.0])
    at = 1 - np.searchsorted(employment, anchor) / len(employment)
    left.loglog(line, 2 * at * (line / anchor) ** -index, "--", color="black", lw=0.8, label=f"slope −{index}")
    left.set_xlabel("employment x")
    left.set_ylabel("share of establishments with at least x")
    for name, counts in (("real", _real_branches()), ("generated", branches)):
        beyond = counts[::-1].cumsum()[::-1] / counts.sum()
        style = {"real": "o", "generated": "x"}[name]
        right.loglog(list(SIZES.values())[1:], beyond.iloc[1:], style, color=COLOURS[name], label=f"{name} firms")
    right.set_xlabel("employment x of the firm")
    right.set_ylabel("share of firms with at least x")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.grid(alpha=0.2)
    return figure


def _save(figure: Figure, name: str) -> None:
    (DOCS / "economy").mkdir(exist_ok=True)
    figure.savefig(DOCS / "economy" / f"{name}.png", dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
