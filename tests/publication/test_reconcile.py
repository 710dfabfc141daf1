"""Reconciled tables of real releases: against totals, a dense solution by numpy, and what breaks sums and files."""

import json
import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import prdp
from jobs.cli import main
from pipeline.plan.structure import TableFacts
from pipeline.publication import released_tables as errors
from pipeline.publication.published_totals import Published
from pipeline.publication.released_tables import ReleasedTable
from prdp import PlanError, StateError
from prdp.declared import location
from tests.support.many_keys import ALL, in_files, met_by_any, microdata, public_cells, queries_of, write
from tests.support.submit import submit
from udfs.mechanisms.catalogue import build

GAUSSIAN = {"kind": "gaussian", "sigma": 4}
LAPLACE = {"kind": "laplace", "sigma": 9}
STABLE = {"kind": "symmetric_stable", "alpha": 1.2, "gamma": 3}
BY_SECTOR = {"by": "naics2", "parts": {"44-45": LAPLACE}, "others": GAUSSIAN}
BY_SIZE = {"by": "size", "parts": {"50+": LAPLACE}, "others": GAUSSIAN}


def variance_of(mechanism: Mapping[str, Any]) -> float:
    return build(mechanism, Fraction(1)).variance(0.0)


def query(name: str, by: Sequence[str], mechanism: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "by": [*by], "mechanism": mechanism} | ({} if "sum" in more else {"count": "records"}) | more


QUERIES = [
    query("n3_county", ["naics3", "county"], GAUSSIAN),
    query("n2_state", ["naics2", "state"], LAPLACE),
    query("n2_cbsa", ["naics2", "cbsa"], GAUSSIAN),
    query("nation_size", ["nation", "naics2", "size"], LAPLACE),
    query("food_state", ["naics6", "state"], GAUSSIAN | {"sigma": 2}, where={"naics3": ["311"]}),
    query("n2", ["naics2"], LAPLACE),  # of other records: a county is not needed
    query("form", ["naics2", "form"], GAUSSIAN),  # `other` forms: everyone has one
    query("stable", ["naics3", "state"], STABLE),
    query("stable_zip", ["zip"], STABLE),
    query(
        "emp_size",
        ["naics2", "county", "size"],
        {"by": "size", "parts": {"50+": LAPLACE}, "others": GAUSSIAN},
        sum="employment",
    ),
    query("emp_state", ["naics2", "state"], LAPLACE, sum="employment"),
]


def released(folder: Path, queries: Sequence[dict[str, Any]], keys: Sequence[str] = ALL, **changes: Any) -> Path:
    place = write(folder, keys, queries, **changes)
    in_files(folder, microdata(400))
    outcome = submit(place)
    return Path(place.out) / outcome.release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("release"), QUERIES)


@pytest.fixture(scope="module")
def made(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return prdp.reconcile(release, tmp_path_factory.mktemp("made") / "out", csv=True)


def test_tables_without_noise_stay_as_they_are_whatever_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels with holes, filters, optional keys, classes, records outside lists: no sum is asserted that is untrue."""
    queries = met_by_any(queries_of(11, ALL, public_cells(ALL), 30), public_cells(ALL))
    folder = released(tmp_path, queries)
    draw = np.random.default_rng(1)
    monkeypatch.setattr(errors, "WORK", 0)
    monkeypatch.setattr(ReleasedTable, "variance", lambda self, _: draw.uniform(1, 9, self.cells.shape))
    made = prdp.reconcile(folder, tmp_path / "made")
    assert set(made) == {each["name"] for each in queries}
    for table in made.values():
        np.testing.assert_allclose(table.value, table.published, atol=0.02)
    assert any(len(group["tables"]) > 3 for group in made.facts["groups"])
    # Tables that leave other records out would be forced together, and totals move.
    monkeypatch.setattr(TableFacts, "keys", lambda self, domain: frozenset())
    wrong = prdp.reconcile(folder, tmp_path / "wrong")
    assert max(np.abs(table.value - table.published).max() for table in wrong.values()) > 1


def dense(
    tables: Mapping[str, pd.DataFrame], weights: Mapping[str, Any], cells: pd.DataFrame, where: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Values and variances by numpy alone: rows are the cells of tables, columns the finest combinations of codes.

    `where`: of tables with a filter on a key that they sum over, which of the columns meet it.
    """
    maps, values, inverse = {}, [], []
    for name, table in tables.items():
        levels = list(table.columns[:-6])
        rows = {key: number for number, key in enumerate(table[levels].itertuples(index=False, name=None))}
        at = [rows.get(key, -1) for key in cells[levels].itertuples(index=False, name=None)]
        maps[name] = (np.arange(len(rows))[:, None] == np.array(at)[None, :]).astype(float)
        maps[name] *= np.asarray(where.get(name, True))
        if name in weights:
            values.append(table.published.to_numpy(float))
            inverse.append(np.broadcast_to(1 / np.asarray(weights[name], float), len(rows)))
    design = np.vstack([maps[name] for name in tables if name in weights])
    w = np.concatenate(inverse)
    normal = np.linalg.pinv(design.T @ (w[:, None] * design), rcond=1e-10, hermitian=True)
    x = normal @ (design.T @ (w * np.concatenate(values)))
    return {name: (a @ x, ((a @ normal) * a).sum(axis=1)) for name, a in maps.items()}


def test_estimates_are_those_of_a_dense_solution(release: Path, made: Any) -> None:
    g, h, s = (variance_of(m) for m in (GAUSSIAN, LAPLACE, GAUSSIAN | {"sigma": 2}))
    group = next(each for each in made.facts["groups"] if "n3_county" in each["tables"])
    weights = {"n3_county": g, "n2_state": h, "n2_cbsa": g, "food_state": s}
    assert set(group["tables"]) == {*weights, "nation_size", "stable"}
    cells = public_cells(ALL)[
        ["naics6", "naics3", "naics2", "county", "state", "nation", "cbsa", "size"]
    ].drop_duplicates()
    found = dense({name: made[name] for name in group["tables"]}, weights | {"nation_size": h}, cells)
    for name, (values, variances) in found.items():
        np.testing.assert_allclose(made[name].value, values, atol=0.01)
        assert (made[name].standard_error ** 2 >= variances * (1 - 1e-9)).all()  # exact, or an upper bound
    assert made.facts["not_reconciled"].keys() == {"stable_zip"}
    assert "no variance" in made.facts["not_reconciled"]["stable_zip"]
    assert group["unweighted"].keys() == {"stable"}
    apart = made.facts["apart"]
    assert apart.keys() == {"records"}
    assert apart["records"].startswith(
        "3 groups of tables, which leave other records out, do not meet: add other: [naics"
    )
    assert "[naics, county, form, zip] to the plan's domain; a record without a code of zip" in apart["records"]


def test_where_tables_are_large_errors_are_bounds_and_so_called(
    release: Path, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "WORK", 0)
    bounds = prdp.reconcile(release, tmp_path / "made")
    for name, table in bounds.items():
        assert (table.standard_error >= made[name].standard_error * (1 - 1e-6)).all()
        pd.testing.assert_series_equal(table.value, made[name].value)
    assert bounds.facts["tables"]["n3_county"]["errors"] == "bound"
    assert bounds.facts["tables"]["emp_size"]["errors"] == "exact"


def test_drawn_errors_are_closer_than_bounds(
    release: Path, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between exact errors and bounds, but for the hundredth part that may lie below the exact ones."""
    monkeypatch.setattr(errors, "WORK", 0)
    bounds = prdp.reconcile(release, tmp_path / "bounds")
    drawn = prdp.reconcile(release, tmp_path / "drawn", draws=60)
    names = [name for name, facts in bounds.facts["tables"].items() if facts["errors"] == "bound"]
    assert {drawn.facts["tables"][name]["errors"] for name in names} == {"drawn"}
    assert 0 < max(drawn.facts["tables"][name]["monte_carlo_error"] for name in names) < 0.5
    exact, least, most = (np.concatenate([of[name].standard_error for name in names]) for of in (made, drawn, bounds))
    assert (least <= most * (1 + 1e-12)).all()
    assert (least < most * 0.999).any()
    assert (least < exact * (1 - 1e-6)).mean() < 0.05
    assert drawn.facts["tables"]["emp_size"]["errors"] == "exact"


def test_a_sum_is_of_the_tables_that_tell_its_cells_and_leave_the_fewest_records_out(made: Any) -> None:
    sector = made.sum("naics2=72", of="records")  # by the table n2, and form: nobody without a county is missing
    assert sector.keys == ("naics",)
    assert sector.value == pytest.approx(made["n2"].set_index("naics2").value["72"])
    small = made.sum("naics2=72, size=0-4", of="records")  # everyone has a size, but only tables by county tell it
    assert small.keys == ("county", "naics")
    cells = made["nation_size"].set_index(["naics2", "size"])
    assert small.value == pytest.approx(cells.value[("72", "0-4")], abs=0.002)
    with pytest.raises(PlanError, match="tell county, form apart together"):
        made.sum("form=C, state=01", of="records")


def test_parts_have_weights_of_their_own(made: Any) -> None:
    g, h = (variance_of(m) for m in (GAUSSIAN, LAPLACE))
    cells = public_cells(ALL)[["naics2", "county", "state", "size"]].drop_duplicates()
    tables = {name: made[name] for name in ("emp_size", "emp_state")}
    weights = {"emp_size": np.where(made["emp_size"]["size"] == "50+", h, g), "emp_state": h}
    for name, (values, variances) in dense(tables, weights, cells).items():
        np.testing.assert_allclose(made[name].value, values, atol=0.01)
        np.testing.assert_allclose(made[name].standard_error ** 2, variances, rtol=1e-9)
        assert made.facts["tables"][name]["errors"] == "exact"


def test_sums_agree_to_the_last_unit_and_verify_repeats_it(made: Any, tmp_path: Path) -> None:
    verified = prdp.read_reconciled(made.folder).verify()
    assert verified.sums > 0
    by_state = made["n3_county"].assign(state=lambda t: t.county.str[:2], naics2=lambda t: t.naics3.str[:2])
    by_state["naics2"] = by_state.naics2.replace({"31": "31-33", "44": "44-45"})
    for column, unit in (("value", 1000), ("display", 1)):
        sums = np.rint(by_state[column] * unit).groupby([by_state.naics2, by_state.state]).sum()
        assert (np.rint(made["n2_state"][column] * unit).to_numpy() == sums.to_numpy()).all()


def test_displayed_figures_are_whole_and_never_negative(made: Any) -> None:
    for table in made.values():
        assert table.display.dtype == np.int64
        assert (table.display >= 0).all()
    assert any((table.value < 0).any() for table in made.values())


def test_the_same_releases_give_the_same_bytes(release: Path, made: Any, tmp_path: Path) -> None:
    prdp.reconcile(release, tmp_path / "out", csv=True)
    one, other = (
        {path.relative_to(home): path.read_bytes() for path in Path(home).rglob("*.*")}
        for home in (made.folder, tmp_path / "out")
    )
    assert one == other
    assert len([path for path in one if path.parent.name != "codes"]) == 2 * len(made) + 3


@pytest.mark.parametrize("column", ["value", "display"])
def test_a_cell_that_is_not_the_sum_is_found(made: Any, column: str, tmp_path: Path) -> None:
    copy = shutil.copytree(made.folder, tmp_path / "copy")
    table = pq.read_table(path := copy / "tables" / "n2_state.parquet")
    changed = table.column(column).to_numpy().copy()
    changed[1] += 1
    pq.write_table(table.set_column(table.column_names.index(column), column, [changed]), path)
    with pytest.raises(StateError, match="differs from the manifest"):
        prdp.read_reconciled(copy)
    assert main(["verify", str(copy)]) == 5
    manifest = json.loads((copy / "reconciled.json").read_text())
    for file in manifest["files"]:
        if file["path"] == "tables/n2_state.parquet":
            file |= {"sha256": sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    (copy / "reconciled.json").write_text(json.dumps(manifest))
    with pytest.raises(StateError, match=f"{column} of the table .* is not the sum"):
        prdp.read_reconciled(copy).verify()


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(groups=[]),  # no sum would be held against finer ones
        lambda manifest: manifest["groups"][0]["tables"].pop(),
        lambda manifest: manifest["groups"][0].update(unit=0),
        lambda manifest: manifest["releases"][0].pop("release"),
        lambda manifest: manifest.pop("dataset"),
    ],
)
def test_a_manifest_that_lacks_a_part_is_refused(made: Any, change: Any, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made.folder, folder)
    manifest = json.loads((folder / "reconciled.json").read_text())
    change(manifest)
    (folder / "reconciled.json").write_text(json.dumps(manifest))
    assert main(["verify", str(folder)]) == 5


LISTED = [
    query("n3_county", ["naics3", "county"], BY_SECTOR, sum="employment"),
    query("n2_state", ["naics2", "state"], LAPLACE, sum="employment"),
    query("nation", ["nation"], LAPLACE, sum="employment"),
    query("food", ["county"], GAUSSIAN, where={"naics2": ["31-33"]}, sum="employment"),
]


def test_listed_cells_are_the_finest_there_are(tmp_path: Path) -> None:
    """Every other cell of two keys: no table holds the others, and all tables leave the same records out."""
    keys = ["naics6", "county"]
    levels = [*keys, "naics2", "naics3", "state", "nation"]
    cells = public_cells(("naics", "county"))[levels].drop_duplicates().iloc[::2]
    tmp_path.joinpath("cells.csv").write_text(cells[keys].rename(columns={"naics6": "naics"}).to_csv(index=False))
    folder = released(tmp_path, LISTED, ("naics", "county"), domain={"cells": "cells.csv"})
    made = prdp.reconcile(folder, tmp_path / "made")
    (group,) = made.facts["groups"]
    assert group["base_cells"] == len(cells[["naics3", "naics2", "county"]].drop_duplicates())
    g, h = variance_of(GAUSSIAN), variance_of(LAPLACE)
    by_sector = np.where(made["n3_county"].naics3.str.startswith("44"), h, g)
    weights = {"n3_county": by_sector, "n2_state": h, "nation": h, "food": g}
    food = {"food": cells.naics2 == "31-33"}
    for name, (values, variances) in dense(dict(made), weights, cells, food).items():
        np.testing.assert_allclose(made[name].value, values, atol=0.01)
        np.testing.assert_allclose(made[name].standard_error ** 2, variances, rtol=1e-6)
    assert made.verify().sums > 0
    one = made.sum("naics3=445, state in 06")
    inside = (made["n3_county"].naics3 == "445") & made["n3_county"].county.str.startswith("06")
    assert one.value == pytest.approx(made["n3_county"].value[inside].sum(), abs=0.002)


def test_published_sums_are_those_of_the_files_whatever_the_filter(release: Path) -> None:
    """Of each table alone, for random filters by its levels: sums and variances, also of parts and filtered tables."""
    published, tables, random = Published([location(str(release), "release")]), prdp.read_release(release), Random(1)
    every, told = list(published.tables.values()), 0
    for table in every:
        frame, published.tables = tables[table.name], {table.name: table}
        for _ in range(8 if len(frame) else 0):
            levels = [level for level in table.facts.by if random.random() < 0.6]
            codes = {level: sorted(frame[level].unique()) for level in levels}
            where = {level: tuple(random.sample(of, min(len(of), random.randint(1, 3)))) for level, of in codes.items()}
            met = np.logical_and.reduce([np.ones(len(frame)), *(frame[level].isin(of) for level, of in where.items())])
            try:
                total = published.total(table.statistic.measure or "records", dict(table.facts.where) | where, 0.95)
            except PlanError:  # codes in no cell, such as counties outside every cbsa
                continue
            told += 1
            assert total.value == pytest.approx(frame["value"][met].sum())
            assert total.variance == pytest.approx((frame["standard_error"][met] ** 2).sum())
    assert told > len(every)
