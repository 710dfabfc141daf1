"""The studies of conf/studies/: the tables and pictures of docs/study.md, in docs/study/.

    python -m benchmarks.study [--records N]

Evaluates each study, then writes the parts of figures.txt between its marks, and the pictures.
"""

import argparse
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base.plain import number
from pipeline.diagnostics.synthetic_microdata import aggregate
from pipeline.engines.dask import DaskEngine
from pipeline.planning.study.studies import StudyJob, evaluate
from pipeline.planning.study.study_spec import load_study

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "study"
PAGE = PICTURES / "figures.txt"
STUDIES = ("slides", "cattle")
QUANTILES = ("0.5", "0.99", "0.9999")


def main() -> None:
    """Evaluate, write."""
    arguments = argparse.ArgumentParser(description="write the figures of docs/study.md")
    arguments.add_argument("--records", type=int, help="of each study (default: its own number)")
    records = arguments.parse_args().records
    page = PAGE.read_text(encoding="utf-8")
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir()
    for name in STUDIES:
        study = load_study(ROOT / "conf" / "studies" / f"{name}.yaml")
        if records is not None:
            study = replace(study, data=replace(study.data, records=records))
        with tempfile.TemporaryDirectory(prefix="prdp-study-") as folder:
            made = evaluate(StudyJob(study=study, out=Path(folder) / "out", scan=partial(aggregate, DaskEngine())))
            for picture in sorted((Path(folder) / "out").glob("*.svg")):
                shutil.copyfile(picture, PICTURES / f"{name}-{picture.name}")
        marks = re.compile(rf"(<!-- made by benchmarks.study: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = "\n".join(_tables(made))
        page = marks.sub(lambda found, text=text: found[1] + text + found[2], page)
    PAGE.write_text(page, encoding="utf-8")


def _tables(made: Mapping[str, Any]) -> list[str]:
    lines = [
        f"\n{made['records']:,} records of seed {made['data']['seed']}, the largest {made['largest_influence']:,}; "
        f"{made['cells']['with_records']:,} of {made['cells']['in_all']:,} cells have records.\n"
    ]
    for panel in made["panels"]:
        first = panel["entries"][0]
        sizes = [f"{loss['influence']:,}" for loss in first["losses"]]
        quantiles = [f"{float(q) * 100:g} %" for q in QUANTILES]
        limits = [f"ρ ≤ {within['rho']:g}" for within in first["within"]]
        lines += [
            f"**{panel['title']}** (ρ of a record with so much {made['measure']}; quantiles of the records' ρ)\n",
            *_rows(["", "noise scale", *sizes, *quantiles, "largest"], [_losses(entry) for entry in panel["entries"]]),
            f"\nShare of records with at most that loss, in %; share that loses less than with {first['label']}:\n",
            *_rows(["", *limits, f"less than {first['label']}"], [_shares(entry) for entry in panel["entries"]]),
            "",
        ]
        if panel["errors"]:
            lines += [f"Cells with a total above 0 by flag, in % ({panel['title']}):\n", *_flags(panel["errors"]), ""]
    return lines


def _losses(entry: Mapping[str, Any]) -> list[str]:
    mechanism = entry["mechanism"]
    noise = mechanism["noise"] if isinstance(mechanism.get("noise"), Mapping) else mechanism
    scale = f"ρ₀ = {noise['rho']:.5g}" if "rho" in noise else f"{noise['sigma']:.5g}"
    losses = [number(loss["rho"]) for loss in entry["losses"]]
    told = f"{entry['label']}{'' if entry['releasable'] else ' †'}"
    return [told, scale, *losses, *(number(entry["quantiles"][q]) for q in QUANTILES), number(entry["largest"])]


def _shares(entry: Mapping[str, Any]) -> list[str]:
    less = entry["loses_less_than_first"]["share"]
    return [entry["label"], *(f"{100 * within['share']:.1f}" for within in entry["within"]), f"{100 * less:.1f}"]


def _flags(errors: Mapping[str, Any]) -> list[str]:
    names = list(next(iter(errors["flags"].values())))
    return _rows(
        ["", *names],
        [[label, *(f"{100 * x:.1f}" for x in shares.values())] for label, shares in errors["flags"].items()],
    )


def _rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in body)]


if __name__ == "__main__":
    main()
