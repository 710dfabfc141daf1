"""The microdata of a study: always synthetic, written anew for each run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.microdata.cattle import write_cattle
from pipeline.microdata.generate import generate
from pipeline.plan.load import load_plan
from pipeline.plan.text import read_text
from pipeline.study.model import Study
from pipeline.totals import Layout, layout_of

OWNER: Final = "firm_id"
CATTLE_PLAN: Final = {
    "release": "cattle-synthetic",
    "dataset": {
        "name": "cattle-synthetic",
        "path": "microdata",
        "record": "farm_id",
        "keys": {"naics": "naics", "county": "county"},
        "measures": {"head": {"column": "head", "type": "integer"}},
    },
    "domain": {"naics": "domain/naics.csv", "county": "domain/counties.csv"},
}


def _establishments(records: int, seed: int, folder: Path) -> dict[str, Any]:
    return read_text(generate(records, seed, folder).plan).data


def _cattle(records: int, seed: int, folder: Path) -> dict[str, Any]:
    write_cattle(records, seed, folder)
    return dict(CATTLE_PLAN)


WRITERS: Final[Mapping[str, Callable[[int, int, Path], dict[str, Any]]]] = {
    "establishments": _establishments,
    "cattle": _cattle,
}
MEASURES: Final = {"establishments": ("employment", "payroll"), "cattle": ("head",)}


def written(study: Study, folder: Path) -> tuple[Path, Layout]:
    """Write the study's microdata into `folder`; return where they lie, and the layout of the study's one table.

    Records know their owner: multiplicative noise has one factor a firm. Raises PlanError on too many records.
    """
    plan = WRITERS[study.data.synthetic](study.data.records, study.data.seed, folder)
    query = {"name": study.name, "sum": study.measure, "by": list(study.by)}
    plan |= {
        "dataset": plan["dataset"] | {"unit": OWNER},
        "queries": [query | {"mechanism": {"kind": "gaussian", "sigma": 1}}],  # nothing is released
        "budget": [],
    }
    path = folder / "study-plan.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return folder / "microdata", layout_of(load_plan(path))
