"""Studies: equal mechanisms, exact distributions, mistakes in their files, and what a run leaves behind."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mpmath import mp
from scipy.stats import norm

from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.diagnostics.synthetic_microdata import aggregate
from pipeline.engines.dask import DaskEngine
from pipeline.microdata import source
from pipeline.planning.study.equal_mechanisms import Equal, Panel, TransformedNoise, lines_of, unequal
from pipeline.planning.study.studies import SMALLEST_SHARE, cumulative
from pipeline.planning.study.study_figures import (
    TODAY,
    Aggregates,
    PanelLosses,
    errors_json,
    factor_variances,
    panel_errors,
    quantile,
)
from pipeline.planning.study.study_spec import load_study
from pipeline.planning.study.study_spec import write_microdata as microdata_of
from pipeline.planning.study.todays_practice import FactorNoise
from pipeline.storage.paths import locate
from pipeline.storage.staging import scratch
from tests.support import studies
from tests.support.factors import cell_variance
from tests.support.mistakes import without_numbers
from udfs.mechanisms.catalogue import build
from udfs.noise.continuous_polylog import ExponentialPolylog

CONF = Path(__file__).parents[2] / "conf" / "studies"


def panels(path: Path) -> Mapping[str, Panel]:
    return {panel.name: panel for panel in load_study(path).panels}


def test_continuous_calibration_is_that_of_the_density() -> None:
    """By hand: Var = 120·σ² with p = ½, ∫ of the density else; on whole numbers the variance is another."""
    found = {
        line.label: line for line in lines_of(panels(CONF / "slides.yaml")["continuous"]) if line.policy == "paper"
    }
    sigma = mp.sqrt(mp.mpf(2) / 120)
    edges = [0, 1, 10, 100, 10**4, 10**8, mp.inf]
    moments = [mp.quad(lambda z, k=k: z**k * mp.exp(1 - mp.log(z + mp.e) ** 2), edges) for k in (0, 2)]
    scale = mp.sqrt(2 * moments[0] / moments[1])
    by_hand = {
        "generalized Gaussian, paper": (sigma, mp.sqrt(1 / sigma), 2.459, 0.855),
        "exponential polylogarithmic, paper": (scale, mp.log(1 / scale + mp.e) ** 2 - 1, 0.749, 1.748),
    }
    for label, (expected, pure, rho, variance) in by_hand.items():
        mechanism = found[label].mechanism
        assert mechanism.describe()["sigma"] == pytest.approx(float(expected), rel=1e-7)
        assert float(mechanism.loss_at(Fraction(1))) == pytest.approx(float(mp.tanh(pure / 2) * pure), rel=1e-7)
        assert float(mechanism.loss_at(Fraction(1))) == pytest.approx(rho, abs=5e-4)
        assert mechanism.variance(2) == pytest.approx(variance, abs=5e-4)
        assert found[label].equal_by == "continuous"


def test_variance_2_at_a_total_of_2_is_that_of_the_lattice() -> None:
    """docs/calibration.md: σ of lattice noise, and of continuous noise on transformed totals."""
    of_slides = panels(CONF / "slides.yaml")
    found = {
        line.label: line.mechanism.describe()
        for name in ("additive", "transformation")
        for line in lines_of(of_slides[name])
    }
    assert found["generalized Gaussian, paper"]["sigma"] == pytest.approx(0.17735, abs=5e-6)
    assert found["exponential polylogarithmic, paper"]["sigma"] == pytest.approx(0.57511, abs=5e-6)
    squares = {"Gaussian": 2, "identity": 2, "fourth root": 0.03914, "log": 0.20067}
    for label, square in squares.items():
        assert float(str(found[label]["sigma"])) ** 2 == pytest.approx(square, rel=1e-3)


def test_every_entry_of_the_studies_at_hand_is_equal() -> None:
    for path in sorted(CONF.glob("*.yaml")):
        for panel in panels(path).values():
            lines, target = lines_of(panel), float(panel.equal.variance)
            variances = [line.mechanism.variance(float(panel.equal.total)) for line in lines]
            for line, variance in zip(lines, variances, strict=True):
                assert (abs(variance / target - 1) < 1e-5) == (line.equal_by == "variance")
                assert line.releasable != isinstance(line.mechanism, TransformedNoise)


def test_unequal_variances_are_found() -> None:
    panel = panels(CONF / "slides.yaml")["transformation"]
    lines = lines_of(panel)
    assert unequal(lines, panel.equal) == []
    log = lines[2].mechanism.describe()
    wrong = replace(lines[2], mechanism=build(log | {"sigma": float(str(log["sigma"])) * 1.001}, Fraction(1)))
    assert unequal([lines[0], wrong], panel.equal) == ["log"]
    assert unequal(lines, replace(panel.equal, total=Fraction(3))) == ["fourth root", "log"]
    assert unequal(lines, Equal(Fraction(2001, 1000), Fraction(2))) == ["identity", "fourth root", "log"]


def test_noise_without_a_variance_has_gaussian_quartiles() -> None:
    lines = {line.label: line for line in lines_of(panels(CONF / "slides.yaml")["products"])}
    gaussian = float(str(lines["log, Gaussian"].mechanism.describe()["sigma"]))
    heavy = lines["log, exponential polylog."].mechanism
    assert isinstance(heavy, TransformedNoise)
    noise = ExponentialPolylog(p=2, d=1, a=float(heavy.noise.describe()["a"]), sigma=float(heavy.noise.sigma))
    assert float(noise.survival(gaussian * norm.ppf(0.75))) == pytest.approx(0.25, rel=1e-6)


def test_an_equality_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    heavy = [{"label": "power law", "mechanism": {"kind": "exponential_polylog", "p": 1, "d": 2.5, "a": 1}}]
    with pytest.raises(PlanError, match="panel one: power law: the noise has no standard error"):
        studies.evaluated(tmp_path, panels=[{"name": "one", "title": "One", "entries": heavy}])
    assert not (tmp_path / "out").exists()
    root = {"kind": "root", "k": 4, "a": 0, "noise": {"kind": "exponential_polylog", "p": 1, "d": 8, "a": 1}}
    entries = [{"label": "root of a power law", "mechanism": root}]
    with pytest.raises(PlanError, match="too few moments"):
        studies.evaluated(tmp_path, panels=[{"name": "one", "title": "One", "entries": entries}])


def collected(folder: Path, **changes: Any) -> tuple[Aggregates, pd.DataFrame]:
    """What the tasks collect of a small study's microdata, and the microdata."""
    folder.mkdir()
    study = load_study(studies.written(folder / "study.yaml", **changes))
    microdata, layout = microdata_of(study, folder / "data")
    with scratch(locate(folder / "scratch"), "small", "study") as between:
        found = aggregate(DaskEngine(workers=2), microdata, layout, between)
    return found, pq.read_table(microdata).to_pandas()


def test_counts_and_cells_are_those_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK_RECORDS", 500)
    for name, query in (("employment", ["naics3", "county"]), ("payroll", ["state"])):
        found, records = collected(tmp_path / name, query={"sum": name, "by": query})
        values, counts = np.unique(records[name], return_counts=True)
        assert (found.influences.tolist(), found.counts.tolist()) == (values.tolist(), counts.tolist())
        records["cell"] = records["naics"].str[:3] + records["county"] if len(query) == 2 else records["county"].str[:2]
        cells = records.groupby("cell")[name]
        firms = records.groupby(["cell", "firm_id"])[name].sum().groupby("cell")
        expected = {
            "totals": cells.sum(),
            "records": cells.size(),
            "firms": firms.size(),
            "squares": (cells.apply(lambda x: (x.astype(float) ** 2).sum())),
            "firm_squares": firms.apply(lambda x: (x.astype(float) ** 2).sum()),
        }
        for field, series in expected.items():
            assert getattr(found.cells, field).tolist() == series.tolist(), field
        assert (np.diff(found.cells.cells) > 0).all()


def test_firms_with_several_records_in_a_cell_are_one(tmp_path: Path) -> None:
    found, records = collected(tmp_path / "state", query={"sum": "employment", "by": ["nation"]})
    assert found.cells.firms.sum() == records["firm_id"].nunique() < len(records)


@pytest.mark.parametrize("own_magnitudes", [False, True])
def test_todays_errors_are_those_of_the_records(tmp_path: Path, own_magnitudes: bool) -> None:
    found, records = collected(tmp_path / "data", query={"sum": "employment", "by": ["state"]})
    noise = FactorNoise(a=1.05, b=1.15, own_magnitudes=own_magnitudes)
    states, state = np.unique(records["county"].str[:2], return_inverse=True)
    firm = np.unique(records["firm_id"], return_inverse=True)[1]
    exact = cell_variance(noise, records["employment"].to_numpy(np.float64), firm, state, len(states))
    assert factor_variances(noise, found.cells).tolist() == pytest.approx(exact.tolist(), rel=1e-12)


def test_errors_and_flags_are_those_of_single_cells(tmp_path: Path) -> None:
    found, _ = collected(tmp_path / "data", query={"sum": "payroll", "by": ["naics3", "county"]})
    (panel,) = (own for own in load_study(tmp_path / "data" / "study.yaml").panels if own.errors)
    losses = PanelLosses.of(panel, lines_of(panel), found)
    errors = panel_errors(losses, found.cells, FactorNoise(a=1.05, b=1.15))
    assert set(errors.errors) == {"fourth root", "log", "fourth root, heavy", TODAY}  # the others have no variance
    flags = errors_json(errors, found.cells)["flags"]
    for line in losses.lines[:3]:
        exact = np.array([line.mechanism.variance(float(total)) for total in found.cells.totals]) ** 0.5
        assert errors.errors[line.label] == pytest.approx(exact, rel=1e-4)
        relative = [error / total for error, total in zip(exact, found.cells.totals, strict=True) if total]
        counts = {"G": sum(r < 0.02 for r in relative), "H": sum(0.02 <= r < 0.05 for r in relative)}
        for flag, count in counts.items():
            assert flags[line.label][flag] == pytest.approx(count / len(relative), abs=1.5 / len(relative))
        assert sum(flags[line.label].values()) == pytest.approx(1)


def test_what_is_drawn_is_the_cumulative_distribution() -> None:
    random = np.random.default_rng(1)
    losses, counts = np.round(random.exponential(3, 4000), 2), random.integers(1, 50, 4000)
    x, y = cumulative(losses, counts)
    assert x[0] == x[1] == losses[losses > 0].min()  # the curve starts where losses do, not at the edge
    assert y[0] == pytest.approx(counts[losses == 0].sum() / counts.sum())
    x, y = x[1:], y[1:]
    assert (np.diff(x) > 0).all()
    assert y[-1] == 1
    shares = [counts[losses <= at].sum() / counts.sum() for at in x]
    assert y == pytest.approx(shares, abs=1e-12)
    at = random.exponential(3, 200) + x[0]
    drawn = y[np.searchsorted(x, at, side="right") - 1]
    exact = np.array([counts[losses <= one].sum() / counts.sum() for one in at])
    assert np.abs(drawn - exact).max() <= 2 * SMALLEST_SHARE


def test_quantiles_are_the_least_losses_that_cover_their_share() -> None:
    losses, counts = np.array([0.5, 0.0, 2.0, 1.0]), np.array([3, 2, 1, 4])
    every = np.sort(np.repeat(losses, counts))
    for text in ("0.01", "0.2", "0.21", "0.5", "0.50001", "0.9", "0.91", "0.9999", "1"):
        share = Fraction(text)
        assert quantile(losses, counts, share) == every[-(-10 * share.numerator // share.denominator) - 1]


def test_figures_are_those_of_single_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies.without_pictures(monkeypatch)
    made = studies.evaluated(tmp_path, data={"synthetic": "establishments", "records": 400, "seed": 2}, limits=[1, 5])
    microdata = tmp_path / "again"
    microdata_of(load_study(tmp_path / "study.yaml"), microdata)
    sizes = pq.read_table(microdata / "microdata").column("employment").to_pylist()
    for panel, asked in zip(made["panels"], load_study(tmp_path / "study.yaml").panels, strict=True):
        lines = lines_of(asked)
        exact = [[line.mechanism.loss_at(Fraction(size)) for size in sizes] for line in lines]
        for entry, losses in zip(panel["entries"], exact, strict=True):
            ordered = sorted(losses)
            for q, loss in entry["quantiles"].items():
                place = -(-len(ordered) * Fraction(q).numerator // Fraction(q).denominator) - 1
                assert ordered[place] <= Fraction(loss) <= ordered[place] * (1 + Fraction(1, 10**9))
            assert entry["largest"] == pytest.approx(float(ordered[-1]), rel=1e-9)
            for within in entry["within"]:
                assert within["share"] == sum(loss <= within["rho"] for loss in losses) / len(losses)
            less = [loss < first for loss, first in zip(losses, exact[0], strict=True)]
            told = entry["loses_less_than_first"]
            assert told["share"] == sum(less) / len(less)
            start = told["from_influence"]
            from_there = [size >= start for size in sizes] if start is not None else [False] * len(sizes)
            assert told["share_from_there"] == sum(from_there) / len(sizes)
            assert all(lower for lower, there in zip(less, from_there, strict=True) if there)


def test_the_command_writes_the_whole_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = studies.written(tmp_path / "study.yaml", panels=[studies.study()["panels"][1]])
    out = tmp_path / "out"
    assert main(["evaluate", str(path), "--records", "500", "--seed", "1", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "study.json").read_text())
    assert (printed["records"], printed["data"]["seed"]) == (500, 1)
    names = {path.name for path in out.iterdir()}
    pictures = {f"{kind}-curves.{form}" for kind in ("losses", "errors") for form in ("svg", "png")}
    assert names == {"study.json", "study.html", "losses-curves.csv", "errors-curves.csv"} | pictures
    page = (out / "study.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 2
    assert 'src="http' not in page
    rows = list(csv.DictReader((out / "losses-curves.csv").read_text().splitlines()))
    assert sum(int(row["records"]) for row in rows) == 500
    assert float(rows[-1]["share_at_most"]) == 1
    assert main(["evaluate", str(path), "--out", str(out)]) == 5
    assert "no empty folder" in capsys.readouterr().err


def test_the_same_study_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies.without_pictures(monkeypatch)
    for name in ("one", "two"):
        studies.evaluated(tmp_path / name)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / n / "out").iterdir()} for n in ("one", "two"))
    assert first == second


@pytest.mark.parametrize("records", [0, 1])
def test_hardly_any_records(tmp_path: Path, records: int) -> None:
    panels = [studies.study()["panels"][1]]
    made = studies.evaluated(tmp_path, data={"synthetic": "establishments", "records": records}, panels=panels)
    assert made["records"] == records
    assert (tmp_path / "out" / "study.html").exists()


def entry(**mechanism: Any) -> dict[str, Any]:
    return wrong_entry(mechanism)


def wrong_entry(mechanism: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {"panels": [{"name": "one", "title": "One", "entries": [{"label": "it", "mechanism": mechanism} | changes]}]}


AT = "panels[one].entries[0]"
DENSITY = f"{AT}.equal: continuous is for additive noise whose density has a variance"
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"pannels": []}, "pannels: unknown key; nearest known key: panels"),
    "confidential data": ({"data": {"path": "x", "records": 5}}, "data.path: unknown key"),
    "kind of data": ({"data": {"synthetic": "pigs", "records": 5}}, "data.synthetic: must be one of establishments, c"),
    "records": ({"data": {"synthetic": "cattle", "records": 1.5}}, "data.records: must be a whole number of at least"),
    "measure": ({"query": {"sum": "employmnt", "by": ["state"]}}, "query.sum: unknown measure of these data; nearest"),
    "level": ({"query": {"sum": "employment", "by": ["naics9"]}}, "query.by[0]: unknown level; known levels: naics2"),
    "no equality": ({"equal": {"total": 2}}, "equal: must have either variance or standard_error"),
    "two equalities": ({"equal": {"variance": 2, "standard_error": 1, "total": 2}}, "equal: must have either variance"),
    "no kind": (entry(p=0.5), f"{AT}.mechanism.kind: missing key"),
    "unknown kind": (entry(kind="gausian"), f"{AT}.mechanism.kind: unknown kind; nearest known kind: gaussian"),
    "a scale": (entry(kind="gaussian", sigma=3), f"{AT}.mechanism.sigma: leave it out: equality decides it"),
    "a policy": (entry(kind="gaussian", policy="paper"), f"{AT}.mechanism.policy: leave it out, and name policies"),
    "a parameter": (entry(kind="root", k=4, a=0, nois="laplace"), f"{AT}.mechanism.nois: unknown key; nearest known"),
    "no parameter": (entry(kind="root", k=4), f"{AT}.mechanism.a: missing key"),
    "a value": (entry(kind="log", a=0), f"{AT}.mechanism.a: must be above 0"),
    "noise of noise": (
        entry(kind="log", a=1, noise={"kind": "gaussian"}),
        f"{AT}.mechanism.noise.kind: unknown kind; nearest known kind: generalized_gaussian",
    ),
    "a root by its density": (wrong_entry({"kind": "root", "k": 4, "a": 0}, equal="continuous"), DENSITY),
    "stable by its density": (wrong_entry({"kind": "symmetric_stable", "alpha": 1.5}, equal="continuous"), DENSITY),
    "quartiles": (
        wrong_entry({"kind": "gaussian"}, equal="quartiles"),
        f"{AT}.equal: must be variance: this mechanism",
    ),
    "variance": (
        entry(kind="log", a=1, noise=studies.GENERALIZED),
        f"{AT}.equal: must be quartiles: no noise with hea",
    ),
    "identity": (
        entry(kind="root", k=1, a=0, noise=studies.GENERALIZED),
        f"{AT}.mechanism.k: must be at least 2; with",
    ),
    "policies": (wrong_entry({"kind": "gaussian"}, policies=["papper"]), f"{AT}.policies[0]: must be "),
    "policies of a curve": (
        wrong_entry({"kind": "log", "a": 1}, policies=["tight"]),
        f"{AT}.policies[0]: must be paper",
    ),
    "today": ({"today": {"a": 1.2, "b": 1.1}}, "today.b: must be above a"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, words = MISTAKES[name]
    path = studies.written(tmp_path / "study.yaml", **changes)
    assert main(["evaluate", str(path), "--out", str(tmp_path / "out")]) == 2
    lines = without_numbers(capsys.readouterr().err.splitlines())
    assert [line for line in lines if line.startswith(f"error: {path}: {words}")], lines
    assert not (tmp_path / "out").exists()


def test_names_that_stand_twice(tmp_path: Path) -> None:
    panel = {"name": "one", "title": "One", "entries": [studies.ADDITIVE[0]] * 2}
    with pytest.raises(PlanError) as told:
        load_study(studies.written(tmp_path / "study.yaml", panels=[panel, panel]))
    assert "panels[0].entries[1].label: another entry of the panel has this label" in str(told.value)
    assert "panels[1].name: another panel has this name" in str(told.value)
