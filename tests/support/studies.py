"""Small studies for tests."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.base.plots import Picture
from pipeline.diagnostics.synthetic_microdata import aggregate
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.planning.study import studies as run
from pipeline.planning.study.studies import StudyJob, evaluate
from pipeline.planning.study.study_spec import load_study

POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": 1, "a": 2.718281828459046}
GENERALIZED = {"kind": "generalized_gaussian", "p": 0.5}
ADDITIVE = [
    {"label": "Gaussian", "mechanism": {"kind": "gaussian"}},
    {"label": "generalized Gaussian", "mechanism": GENERALIZED},
    {"label": "polylog", "mechanism": POLYLOG},
]
CURVES = [
    {"label": "fourth root", "mechanism": {"kind": "root", "k": 4, "a": 0}},
    {"label": "log", "mechanism": {"kind": "log", "a": 1}},
    {"label": "fourth root, heavy", "mechanism": {"kind": "root", "k": 4, "a": 0, "noise": GENERALIZED}},
    {"label": "log, heavy", "mechanism": {"kind": "log", "a": 1, "noise": POLYLOG}, "equal": "quartiles"},
]


def study(**changes: Any) -> dict[str, Any]:
    """Return a study as data; `changes` replace top-level keys."""
    whole = {
        "study": "small",
        "title": "A small study",
        "data": {"synthetic": "establishments", "records": 3000, "seed": 5},
        "query": {"sum": "employment", "by": ["naics3", "county"]},
        "equal": {"variance": 2, "total": 2},
        "today": {"a": 1.05, "b": 1.15, "own_magnitudes": True},
        "panels": [
            {"name": "additive", "title": "Additive", "entries": ADDITIVE},
            {"name": "curves", "title": "Transformations", "entries": CURVES, "errors": True},
        ],
    }
    return whole | changes


def written(path: Path, **changes: Any) -> Path:
    """Write a study's file."""
    path.write_text(yaml.safe_dump(study(**changes), sort_keys=False), encoding="utf-8")
    return path


def evaluated(folder: Path, engine: Engine | None = None, **changes: Any) -> Mapping[str, Any]:
    """Evaluate a small study into folder/out; return its document."""
    folder.mkdir(exist_ok=True)
    found = load_study(written(folder / "study.yaml", **changes))
    return evaluate(StudyJob(study=found, out=folder / "out", scan=partial(aggregate, engine or DaskEngine(workers=2))))


def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out, which take most of a run's time."""

    def empty(panel: Any, *_: Any) -> Picture:
        name = f"losses-{panel.panel.name}" if hasattr(panel, "panel") else f"errors-{panel.name}"
        return Picture(name, {".svg": b""})

    for picture in ("losses_picture", "errors_picture"):
        monkeypatch.setattr(run, picture, empty)
