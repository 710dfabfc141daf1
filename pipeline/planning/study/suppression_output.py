"""What a study of suppression found, for people: columns of text and one picture."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.base.plots import FORMATS, PRACTICES, Picture, picture
from pipeline.storage.folders import filled
from udfs.numbers.exact import bound_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT: Final = "suppression.json"
RULES: Final = {"p_percent": "p % rule", "dominance": "(n, k) rule", "threshold": "threshold", "any": "any of them"}
ATTACKS: Final = {"before": "by margins, without secondary suppression", "after": "by margins, with it"}
NOTES: Final = (
    "Synthetic microdata: no figure here is an estimate about real establishments, nor confidential.",
    "within: relative error; cells by their true total, of all tables together, over cells and draws.",
    "An attacker here knows the published sums and that nothing is below 0, and no firm's own figure. Suppression and",
    "multiplicative noise bound no record's loss; prdp does (rho), whatever the attacker knows.",
)


def columns(figures: dict[str, Any]) -> Iterator[list[list[str]]]:
    """Yield tables of text: the tables' suppressed cells, the attack, errors by size, and losses."""
    measure = figures["measure"]
    rows = [["table", "cells", "primary", "secondary", "withheld: cells", measure, "records"]]
    for table in figures["tables"]:
        counts = (f"{table[name]:,}" for name in ("cells", "primary", "secondary"))
        shares = (f"{table[f'{name}_share']:.1%}" for name in ("cells", "measure", "records"))
        rows.append([table["name"], *counts, *shares])
    yield rows
    rows = [["primary sums by", *(RULES[rule] for rule in figures["primary"])]]
    yield [*rows, ["", *(f"{count:,}" for count in figures["primary"].values())]]
    rows = [["of these are found", "exactly", "nearer than the rules allow"]]
    for when, found in figures["attack"].items():
        shown = [f"{found[of]:.0%}" if of in found else "" for of in ("exactly_share", "too_near_share")]
        rows.append([ATTACKS.get(when, f"by the values of {when}"), *shown])
    yield rows
    first, *noisy = methods = [name for name in figures["errors"]["all"] if name != "cells"]
    heads = [f"{name}: {quantile}" for name in noisy for quantile in ("median", "90 %")]
    rows = [["true total", "cells", "suppressed", *(f"within 10 %: {name}" for name in methods), *heads]]
    for each in [*figures["errors"]["sizes"], figures["errors"]["all"]]:
        name = f"from {each['from']:,}" if "from" in each else "all"
        usable = (_percent(each[method]["usable"]) for method in methods)
        wrong = (_percent(each[method][quantile]) for method in noisy for quantile in ("median", "ninety"))
        rows.append([name, f"{each['cells']:,}", _percent(each[first]["withheld"]), *usable, *wrong])
    yield rows
    rows = [["a record of", "loses in these tables", "in the whole plan"]]
    rows += [[each["label"], *(bound_text(each[of], 3) for of in ("tables", "plan"))] for each in figures["losses"]]
    of = figures["quantiles"]
    yield [
        *rows,
        ["half of all records, at most", bound_text(of["0.5"], 3), ""],
        ["99 %", bound_text(of["0.99"], 3), ""],
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if 0 < share < 0.1 else f"{share:,.0%}"


def write(figures: dict[str, Any], out: Path) -> None:
    """Write the figures and the picture into `out`, a folder that is absent or empty; raises as `filled` does."""
    drawn = board(figures)
    with filled(out) as folder:
        (folder / DOCUMENT).write_text(
            json.dumps(figures, ensure_ascii=False, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        for suffix, data in drawn.files.items():
            (folder / f"suppression{suffix}").write_bytes(data)


def board(figures: dict[str, Any]) -> Picture:
    """Return the picture: what readers can use, how wrong it is, and what an attacker finds."""
    sizes = [each for each in figures["errors"]["sizes"] if each["cells"]]
    methods = [name for name in sizes[0] if name not in ("cells", "from")] if sizes else []
    places = np.arange(len(sizes))

    def draw(panels: Sequence["Axes"]) -> None:
        use, wrong, attack = panels
        for method in methods:
            style: Any = {"color": PRACTICES[method], "linewidth": 1.5, "marker": "o", "markersize": 4}
            use.plot(places, [100 * each[method]["usable"] for each in sizes], label=method, **style)
            if method != "suppression":
                for quantile, dash in (("median", "-"), ("ninety", "--")):
                    shown = [100 * (each[method][quantile] or np.nan) for each in sizes]
                    wrong.semilogy(places, shown, **style | {"linestyle": dash})
        for axes in (use, wrong):
            axes.set_xticks(places, [f"from {each['from']:,}" for each in sizes])
            axes.set(xlabel=f"true total of the cell: {figures['measure']}")
        use.set(ylim=(0, 102), ylabel="published within 10 % of the truth, in % of cells")
        wrong.set(ylabel="relative error in %: median, dashed 90 %")
        bars = [(name, PRACTICES["suppression"]) for name in ("margins of\nprimary alone", "with\nsecondary")]
        bars += [("multiplicative\nnoise", PRACTICES["multiplicative noise"]), ("prdp", PRACTICES["prdp"])]
        for i, (found, (_, colour)) in enumerate(zip(figures["attack"].values(), bars, strict=False)):
            share = 100 * found["too_near_share"]
            attack.bar(i, share, 0.6, color=colour, zorder=2)
            attack.text(i, share + 1, f"{share:.0f} %" if share >= 1 or not share else "< 1 %", ha="center")
        attack.set_xticks(range(4), [name for name, _ in bars], fontsize=8.5)
        attack.set(ylim=(0, 105), ylabel="primary cells found nearer than the rules allow, in %")

    title = f"{figures['plan']}: suppression, multiplicative noise and prdp at the same tables"
    return picture(title, draw, panels=3, size=(14, 4.8), formats=FORMATS)
