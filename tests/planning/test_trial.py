"""`prdp try`: drawn errors are those of the noise, nothing is charged, and no microdata of a plan are read."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import prdp
from jobs.cli import main
from pipeline.accounting.accountant import LeftOutTest
from pipeline.diagnostics.accuracy import CLASSES, Bins, Drawn, DrawTask, drawn_json
from pipeline.diagnostics.plan_trials import TrialJob, try_plans
from pipeline.diagnostics.synthetic_microdata import Economy, Origin
from pipeline.engines.dask import DaskEngine
from pipeline.engines.writers import Block
from pipeline.plan.load import load_plan
from pipeline.planning.trial_text import trial_text
from tests.support.world import plan as world_plan
from tests.support.world import records, write_world
from udfs.mechanisms.base import Released
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import SecretKey

SMALL = {"records": 100_000, "draws": 3}
LIMIT = 5.0  # standard errors: a true mean misses by as much once in two million


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The small world's plan, tried once; its microdata are never written, so that nothing can read them."""
    folder = tmp_path_factory.mktemp("world")
    return prdp.try_plan(write_world(folder, None), **SMALL)


def block(mechanism: dict[str, Any], totals: list[int]) -> Block:
    return Block(
        query="q",
        number=0,
        first=0,
        keys={},
        totals=np.array(totals, dtype=np.int64),
        mechanisms=(build(mechanism, Fraction(1)),),
        part_of=None,
        interval=Fraction(19, 20),
        integer=True,
        path="q",
    )


def errors_of(task: DrawTask, drawn: Block) -> dict[str, Any]:
    return drawn_json(task(drawn), len(task.keys), {}, variance=True)[-1]


def fits(row: dict[str, Any], standard_error: float) -> bool:
    """Whether a row's bias, spread and coverage are those of unbiased noise of this standard error."""
    return (
        abs(row["bias"]) <= LIMIT * row["bias_mc"]
        and abs(row["standard_error"] / standard_error - 1) <= 0.05
        and row["coverage"] >= 0.95 - LIMIT * row["coverage_mc"]
    )


class Wrong(Block):
    """A twin whose values are drawn wrongly, in a way that its subclass says."""

    def values(self, key: SecretKey) -> Released:
        return self.wrong(super().values(key))

    def wrong(self, released: Released) -> Released:
        return replace(released, value=released.value + 1)


class Narrow(Wrong):
    def wrong(self, released: Released) -> Released:
        return replace(released, lower=released.lower + 10, upper=released.upper - 10)


def test_drawn_errors_are_those_of_the_noise_and_wrong_draws_are_seen() -> None:
    task = DrawTask(tuple(SecretKey(bytes([i]) * 32) for i in range(4)), Fraction(1))
    good = block({"kind": "gaussian", "sigma": 10}, [1000] * 3000)
    row = errors_of(task, good)
    assert fits(row, 10)
    # E|N(0, 10²)| = 10·√(2/π); medians of the discrete noise are whole numbers beside 6.74 and 16.4
    assert row["mean_absolute_error"] == pytest.approx(
        10 * (2 / np.pi) ** 0.5, abs=LIMIT * row["mean_absolute_error_mc"]
    )
    assert (row["median_absolute_error"], row["ninety_absolute_error"]) in {(7, 16), (6, 16), (7, 17)}
    assert row["median_relative_error"] == pytest.approx(row["median_absolute_error"] / 1000, rel=1 / 64)
    assert row["within"]["0.05"] == 1
    for twin in (Wrong, Narrow):
        assert not fits(errors_of(task, twin(**vars(good))), 10)


def test_each_draw_has_noise_of_its_own() -> None:
    one, other = (SecretKey(bytes([i]) * 32) for i in range(2))
    cell = block({"kind": "laplace", "sigma": 50}, [0] * 200)
    apart = DrawTask((one, other), Fraction(1))(cell)
    assert apart.sums["bias"][0] != 2 * DrawTask((one,), Fraction(1))(cell).sums["bias"][0]
    assert int(apart.cells.sum()) == 200  # cells are counted once, whatever the number of draws


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50), st.sampled_from([Fraction(1, 2), Fraction(9, 10)]))
def test_quantiles_are_within_one_part_in_64(errors: list[float], share: Fraction) -> None:
    values = np.array(errors)
    bins = Bins.merged([Bins.of(np.full(len(part), 3), part) for part in np.array_split(values, 2) if len(part)])
    exact = float(np.quantile(values, float(share), method="inverted_cdf"))
    found = bins.quantile(np.array([3]), share)
    assert found is not None
    assert found == pytest.approx(exact, rel=1 / 64, abs=1e-40)
    assert bins.quantile(np.array([4]), share) is None


def test_a_whole_plan_is_tried(tried: dict[str, Any]) -> None:
    (found,) = tried["plans"]
    assert [table["name"] for table in found["tables"]] == [
        "establishments",
        "employment_sector_county",
        "payroll_state",
    ]
    for table, expected in zip(found["tables"], (2.0, 10 * 2**0.5, None), strict=True):
        rows = table["classes"]
        assert rows[-1]["total"] == "all"
        assert rows[-1]["cells"] == table["cells"] == sum(row["cells"] for row in rows[:-1])
        for row in rows:
            assert row["coverage"] >= 0.95 - LIMIT * row["coverage_mc"]
            if expected is not None and row["cells"] > 30:
                assert row["standard_error"] == pytest.approx(expected, rel=0.35)
                assert row["expected_standard_error"] == pytest.approx(expected, rel=0.01)
    assert found["limits"][0]["within"]
    assert found["needs"]["published_bytes"] > 0
    assert 0 < found["records"]["in_domain"] < found["records"]["made"] == SMALL["records"]
    losses = found["losses"]
    assert losses["records"]["count"] == found["records"]["in_domain"] >= losses["firms"]["count"]
    assert losses["firms"]["largest"] >= losses["records"]["largest"]


def test_shares_above_limits_are_those_of_the_records(tmp_path: Path) -> None:
    plan = load_plan(write_world(tmp_path, None, budget=[{"at": {"employment": 10, "payroll": 500}, "rho": 1}]))
    with DaskEngineClosed() as engine:
        tried = try_plans(TrialJob(plans=[plan], origin=Origin(records=20_000), draws=0, engine=engine))
    losses = tried.document["plans"][0]["losses"]["records"]
    (folder := tmp_path / "again").mkdir()
    table = pq.read_table(Economy(Origin(records=20_000), folder).for_plan(plan).path)
    count, employment, payroll = (query.mechanisms[0] for query in plan.queries)
    filtered = np.isin([code[:2] for code in table["naics"].to_pylist()], ["31", "32", "33", "44", "45"])
    one = np.ones(len(table))
    loss = count.loss(one) + LeftOutTest().mechanism.loss(one) + employment.loss(table["employment"].to_numpy() * one)
    loss += np.where(filtered, payroll.loss(table["payroll"].to_numpy() * one), 0)
    assert losses["count"] == len(table)
    assert losses["largest"] == pytest.approx(loss.max(), rel=1e-8)
    share = losses["above"][0]["share"]
    assert 0 < (loss > 1).mean() <= share <= (loss * (1 + 1 / 64) > 1).mean() < 1


class DaskEngineClosed(DaskEngine):
    def __enter__(self) -> "DaskEngineClosed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_no_ledger_of_the_user_is_opened_and_keys_are_injected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan(write_world(tmp_path, None))
    made: list[SecretKey] = []

    def key() -> SecretKey:
        made.append(SecretKey(bytes([len(made)]) * 32))
        return made[-1]

    monkeypatch.setattr(SecretKey, "fresh", None)  # what a release of its own would call
    monkeypatch.setattr("pipeline.engines.writers.rehearse", lambda *_: None)  # a throw-away key of the tables
    with DaskEngineClosed() as engine:
        try_plans(TrialJob(plans=[plan], origin=Origin(records=20_000), draws=2, engine=engine, new_key=key))
    assert len(made) == 4  # two draws, the rehearsed release and its test
    assert not (tmp_path / "state").exists()


def test_files_declared_public_are_named_and_those_of_datasets_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no ledger of whoever runs the tests
    path = write_world(tmp_path, records(400))
    own = tmp_path / "microdata"
    with pytest.raises(prdp.PlanError, match="the plan's own microdata"):
        prdp.try_plan(path, sizes=own, declared_public_by="Ann")
    copy = tmp_path / "copy.csv"
    pa_csv.write_csv(pq.read_table(own / "part-0.parquet"), copy)
    declared = prdp.try_plan(path, sizes=copy, declared_public_by="Ann", draws=1)
    assert declared["microdata"]["declared_public_by"] == "Ann"
    assert "Ann" in trial_text(declared)
    assert declared["plans"][0]["records"] == {"made": None, "in_domain": 400}

    ledger = prdp.create_ledger(tmp_path / "known" / "ledger.sqlite")
    prdp.load_plan(path).release(copy, ledger=ledger, out=tmp_path / "out")
    before = ledger._store.head()
    with pytest.raises(prdp.StateError, match="one of dataset small-world"):
        prdp.try_plan(path, sizes=copy, declared_public_by="Ann", ledger=ledger.address)
    assert ledger._store.head() == before
    with pytest.raises(prdp.PlanError, match="declared_public_by"):
        prdp.try_plan(path, sizes=copy)


def test_a_distribution_of_sizes_takes_the_place_of_employment(tmp_path: Path) -> None:
    path = write_world(tmp_path, None)
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("value,count\n7,3\n40,1\n")
    folder = tmp_path / "economy"
    folder.mkdir()
    made = Economy(Origin(records=40_000, sizes=sizes, declared_public_by="Ann"), folder)
    table = pq.read_table(made.for_plan(load_plan(path)).path)
    employment = table["employment"].to_numpy()
    assert set(employment.tolist()) == {7, 40}
    assert pq.read_schema(next(made.for_plan(load_plan(path)).path.iterdir())).metadata[b"prdp.synthetic"] == b"true"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": {"measures": {"head": {"column": "head", "type": "integer"}}}}, "measure head: the economy has"),
        ({"like": "cbp-2011", "states": ["99"]}, "99 is no state"),
        ({"records": 10, "like": "cbp-2011"}, "records=: it goes without like="),
    ],
)
def test_what_the_economy_cannot_make_is_told_in_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    of_call = {name: changes.pop(name) for name in ("records", "like", "states") if name in changes}
    if changes:
        changes["queries"] = [
            {"name": "head", "sum": "head", "by": ["state"], "mechanism": {"kind": "laplace", "sigma": 10}}
        ]
        changes["budget"] = []
    with pytest.raises(prdp.PlanError, match=words) as error:
        prdp.try_plan(write_world(tmp_path, None, **changes), **of_call)
    assert len(str(error.value).splitlines()) == 1


def test_plans_beside_each_other_and_a_broken_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first has a variable, and a family, which no ledger of a trial knows; the plan beside it has neither."""
    path = write_world(tmp_path, None)
    template = yaml.safe_load(path.read_text())
    template |= {"variables": {"year": {"pattern": "[0-9]{4}", "about": "A year"}}, "release": "world-{{ year }}"}
    path.write_text(yaml.safe_dump(template | {"dataset": template["dataset"] | {"family": "worlds"}}))
    other = world_plan(release="other", budget=[{"at": {"employment": 10, "payroll": 500}, "rho": 0.01}])
    beside = tmp_path / "other.yaml"
    beside.write_text(yaml.safe_dump(other))
    call = ["try", str(path), "--set", "year=2026", "--beside", str(beside), "--records", "20000", "--draws", "1"]
    assert main([*call, "--json"]) == 3
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    first, second = document["plans"]
    assert first["records"] == second["records"]
    assert [limit["within"] for limit in first["limits"] + second["limits"]] == [True, False]
    assert "release other: breaks a limit" in captured.err
    assert main(["try", str(path), "--data", "x"]) == 2


@pytest.mark.parametrize("plans", [1, 2, 3])
def test_text_has_at_most_60_lines_of_80_columns(tried: dict[str, Any], plans: int) -> None:
    document = deepcopy(tried)
    (one,) = document["plans"]
    for tables in (3, 125):
        one["tables"] = [one["tables"][i % 3] | {"name": f"t{i}"} for i in range(tables)]
        one["limits"] = [deepcopy(one["limits"][0]) for _ in range(2 * plans)]
        document["plans"] = [one | {"file": f"plan-{i}.yaml"} for i in range(plans)]
        text = trial_text(document).splitlines()
        assert len(text) <= 60
        assert max(map(len, text)) <= 80
        assert any(line.startswith("t0:") for line in text)
        assert any("losses (rho)" in line for line in text)


def test_merged_draws_add_up() -> None:
    task = DrawTask((SecretKey(bytes(32)),), Fraction(1))
    one, two = (block({"kind": "gaussian", "sigma": 5}, totals) for totals in ([0, 5], [500]))
    merged = Drawn.merged([task(one), task(two)])
    assert merged.cells.shape == (len(CLASSES) + 1,)
    assert merged.sums["coverage"].sum() == 3
    assert merged.bins["relative"].counts.sum() == 2


def test_usable_cells_are_counted_released_and_reconciled(tmp_path: Path) -> None:
    """Against sums by pandas; a derived table is not released, and usable once it is reconciled."""
    noise = [{"kind": "gaussian", "sigma": sigma} for sigma in (30, 200, 4)]
    queries = [
        {"name": "fine", "sum": "employment", "by": ["naics6", "county"], "mechanism": noise[0]},
        {"name": "states", "sum": "employment", "by": ["state"], "mechanism": noise[1]},
        {"name": "alone", "count": "records", "by": ["naics6", "county"], "mechanism": noise[2]},
    ]
    derived = [{"name": "sectors", "sum": "employment", "by": ["naics2", "state"]}]
    path = write_world(tmp_path, None, queries=queries, derived=derived, budget=[])
    tried = prdp.try_plan(path, records=20_000, draws=0, usable=0.2)
    assert tried["plans"][0]["usable"]["within"] == 0.2
    (folder := tmp_path / "again").mkdir()
    frame = pq.read_table(Economy(Origin(records=20_000), folder).for_plan(load_plan(path)).path).to_pandas()
    frame["state"] = frame["county"].str[:2]
    frame["sector"] = frame["naics"].str[:2].replace({"32": "31", "33": "31", "45": "44", "49": "48"})
    fine, states, sectors = (
        frame.groupby(keys)["employment"].sum() for keys in (["naics", "county"], ["state"], ["sector", "state"])
    )
    totals = {"fine": fine, "states": states, "sectors": sectors, "alone": frame.groupby(["naics", "county"]).size()}
    errors, usable = tried.accuracy.set_index("query"), tried.usable.set_index("query")
    assert errors["reconciled"]["states"] < errors["standard_error"]["states"]
    assert errors["reconciled"]["alone"] == errors["standard_error"]["alone"]
    assert np.isnan(errors["standard_error"]["sectors"])
    assert errors["reconciled"]["sectors"] > errors["reconciled"]["fine"]
    for name, of_cells in totals.items():
        above = of_cells[of_cells > 0]
        assert usable["cells"][name] == len(above)
        for way, column in (("released", "standard_error"), ("reconciled", "reconciled")):
            assert usable[way][name] == pytest.approx((errors[column][name] <= 0.2 * above).mean())
    assert usable["reconciled"]["sectors"] > usable["released"]["sectors"] == 0

    plan = tried["plans"][0]
    by_size = {each["name"]: [each] for each in (*plan["tables"], *plan["derived"])} | {"all": [plan]}
    for name, (document,) in by_size.items():
        some = {each: cells for each, cells in totals.items() if name in (each, "all")}
        rows = document["usable"]["sizes"]
        assert (
            sum(row["cells"] for row in rows)
            == document["usable"]["cells"]
            == sum((c > 0).sum() for c in some.values())
        )
        for row in rows:
            low = 0.5 if row["total"] == "below 1" else float(row["total"].removeprefix("from ").replace(",", ""))
            high = min([end for end in CLASSES if end > low], default=np.inf)
            here = {each: cells[(cells >= low) & (cells < high)] for each, cells in some.items()}
            good = sum((errors["reconciled"][each] <= 0.2 * cells).sum() for each, cells in here.items())
            assert row["cells"] == sum(map(len, here.values()))
            assert row["reconciled"] == pytest.approx(good / row["cells"])
    together = tried["plans"][0]["usable"]
    assert together["mean_reconciled"] == pytest.approx(usable["reconciled"].mean())
    assert together["reconciled"] == pytest.approx(
        (usable["reconciled"] * usable["cells"]).sum() / usable["cells"].sum()
    )
    shown = trial_text(tried)
    assert "tables on average" in shown
    opening = shown.index("What the public will see")
    assert opening < shown.index("plan small-release: ") < shown.index("fine: ")
    assert re.search(rf"all above 0 +{together['cells']:,} +\d", shown[opening:])
    assert "sectors: derived, ± – → " in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
