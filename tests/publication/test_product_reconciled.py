"""Products of reconciled figures: what goes before what, what adds up in each row, and what is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.publication.product.derived_columns import Figures
from pipeline.publication.product.product_files import _ended
from pipeline.publication.product.product_layouts import Rows
from prdp import PlanError
from tests.support.submit import Place, submit
from tests.support.world import records, write_world


def test_reconciled_figures_go_before_released_ones(tmp_path: Path) -> None:
    queries: list[dict[str, Any]] = [
        {"name": "people_county", "sum": "employment", "by": ["county", "naics2"]},
        {"name": "people_state", "sum": "employment", "by": ["state", "naics2"]},
    ]
    for each in queries:
        each["mechanism"] = {"kind": "gaussian", "sigma": 40}
    place = Place(write_world(tmp_path, records(500), queries=queries), tmp_path)
    release = Path(place.out) / submit(place).release
    made = prdp.reconcile(release, tmp_path / "reconciled")
    columns = [
        {"name": "STATE", "meaning": "State", "codes": {"state": {}}},
        {"name": "PEOPLE", "meaning": "All", "value": "people"},
        {"name": "GOOD", "meaning": "How good it is", "flag": "people"},
    ]
    spec: dict[str, Any] = {
        "product": "people",
        "title": "People",
        "levels": {level: {"meaning": level} for level in ("county", "state", "naics2")},
        "measures": {"people": {"meaning": "People", "unit": "people"}},
        "flags": [{"flag": "a", "under": 3, "meaning": "good"}, {"flag": "b", "meaning": "bad"}],
        "tables": [{"name": "counties", "values": {"people": "people_county"}}],
        "layouts": [
            {
                "file": "states.csv",
                "about": "States",
                "rows": [{"by": ["state"], "values": {"people": "people_state"}}],
                "columns": columns,
            }
        ],
    }
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    call = ["product", release, "--product", tmp_path / "people.yaml", "--reconciled", tmp_path / "reconciled"]
    assert main([*map(str, call), "--out", str(tmp_path / "made")]) == 0
    research = pq.read_table(tmp_path / "made" / "research" / "counties.parquet").to_pandas()
    table = made["people_county"]
    np.testing.assert_array_equal(research.people, table.value)
    np.testing.assert_array_equal(research.people_published, table.published)
    np.testing.assert_array_equal(research.people_variance, table.standard_error**2)
    assert (research.people_published_variance == 1600).all()
    basic = pq.read_table(tmp_path / "made" / "basic" / "counties.parquet").to_pandas()
    np.testing.assert_array_equal(basic.people.dropna(), table.display[basic.people.notna()])
    # A layout's sum over industries is that of estimates, rounded; its flag takes the less of two bounds of its error.
    how = {"value": "sum", "standard_error": "sum", "published": "size"}
    states = made["people_state"].groupby("state").agg(how)
    found = pd.read_csv(tmp_path / "made" / "layouts" / "states.csv", dtype={"STATE": str})
    assert found.STATE.tolist() == states.index.tolist()
    assert found.PEOPLE.tolist() == states.value.round().tolist()
    errors = np.minimum(40 * states.published**0.5, states.standard_error)
    assert found.GOOD.tolist() == ["a" if each < 3 else "b" for each in 100 * errors / states.value]
    manifest = json.loads((tmp_path / "made" / "product.json").read_text())
    assert manifest["reconciled"]["tables"] == ["people_county", "people_state"]
    dictionary = (tmp_path / "made" / "dictionary.csv").read_text()
    for told in ('people,number,people,"People, reconciled"', "people_published_variance,number,(people)²"):
        assert told in dictionary
    # Of other releases it is refused.
    place = Place(write_world(tmp_path / "2", records(500), queries=queries), tmp_path / "2")
    call[1] = Path(place.out) / submit(place, key=None).release
    with pytest.raises(PlanError, match="was made of the release small-release, which is not given, or differs"):
        prdp.product(call[1], tmp_path / "x", product=tmp_path / "people.yaml", reconciled=tmp_path / "reconciled")


SIZED = ("0-4", "5-999", "1000-1499", "1500-2499", "2500-4999", "5000+")
SIZES = [{"name": f"n{i}", "meaning": size, "value": "sizes", "of": {"size": size}} for i, size in enumerate(SIZED)]
LAYOUT: dict[str, Any] = {
    "file": "co.txt",
    "about": "Counties",
    "rows": [
        {"by": ["county", "naics2"], "values": {"est": ["nowhere", "est_all", "est"], "sizes": "est", "emp": "emp"}}
    ],
    "columns": [
        {"name": "naics", "meaning": "Sector", "codes": {"naics2": {}}, "otherwise": "--"},
        {"name": "fips", "meaning": "County", "codes": {"county": {"characters": [3, 5]}}},
        {"name": "est_nf", "meaning": "Flag", "flag": "est"},
        {"name": "est", "meaning": "All", "value": "est"},
        [
            *SIZES,
            {"name": "n1000", "meaning": "1000+", "value": "sizes", "of": {"size": ["1000+", *SIZED[2:]]}},
            {"name": "n9", "meaning": "none", "value": "sizes", "of": {"size": "9+"}, "optional": True},
            *(
                {"name": f"e{i}{end}", "meaning": SIZED[i], show: "emp", "of": {"size": SIZED[i]}}
                for i in range(2)
                for end, show in (("nf", "flag"), ("", "value"))
            ),
        ],
    ],
    "sums": {"est": [each["name"] for each in SIZES], "n1000": ["n2", "n3", "n4", "n5"]},
    "withhold": {"interval_holds_zero": True},
    "ranges": True,
}
DISTRICT: dict[str, Any] = {
    "file": "cd.txt",
    "about": "Districts",
    "optional": True,
    "rows": [{"by": ["cd"], "values": {"est": "cd_est"}}],
    "columns": [
        {"name": "cd", "meaning": "District", "codes": {"cd": {"characters": [3, 4]}}},
        {"name": "name", "meaning": "Its name", "codes": {"cd": {"name": True}}},
        {"name": "est", "meaning": "All", "value": "est"},
    ],
}
SMALL: dict[str, Any] = {
    "product": "small",
    "title": "Small",
    "reconciled": True,
    "zip": True,
    "csv": False,
    "levels": {level: {"meaning": level} for level in ("county", "naics2", "cd", "size")},
    "measures": {name: {"meaning": name, "unit": name} for name in ("est", "sizes", "emp")},
    "flags": [{"flag": "G", "under": 2, "meaning": "low"}, {"flag": "J", "meaning": "high"}],
    "tables": [{"name": "all", "by": ["county", "size", "naics2"], "values": {"est": "est", "emp": "emp"}}],
    "layouts": [
        LAYOUT,
        DISTRICT,
        DISTRICT | {"file": "none.txt", "rows": [{"by": ["cd"], "values": {"est": "cd_est_total"}}]},
    ],
}


@dataclass(frozen=True)
class Made:
    """A release by classes of employment, its reconciled tables and the product that is made of them."""

    folder: Path
    release: Path
    tables: Any
    answer: dict[str, Any]

    def layout(self, name: str) -> pd.DataFrame:
        return pq.read_table(self.folder / "made" / "layouts" / f"{name}.parquet").to_pandas()

    def product(self, source: Any, out: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = prdp.product(source, self.folder / out, product=self.folder / "small.yaml", **options)
        return answer


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("sized")
    people = np.random.default_rng(7).choice([2, 50, 1200, 2000, 3000, 9000], 3000)
    districts = np.where(np.arange(3000) % 3 == 0, "0101", "0602")
    micro = records(3000).set_column(3, "employment", pa.array(people)).append_column("district", pa.array(districts))
    (folder / "domain").mkdir()
    (folder / "domain" / "cd.csv").write_text("code,name\n0101,District 0101\n0602,District 0602\n")
    queries = [
        {"name": "est", "count": "records", "by": ["naics2", "size", "county"]},
        {"name": "est_state", "count": "records", "by": ["state", "size"]},
        {"name": "cd_est", "count": "records", "by": ["cd"]},
        {"name": "emp", "sum": "employment", "by": ["naics2", "county", "size"]},
    ]
    world = write_world(
        folder,
        micro,
        dataset={"keys": {"naics": "naics", "county": "county", "cd": "district"}},
        domain={
            **{"naics": "domain/naics.csv", "county": "domain/counties.csv", "cd": "domain/cd.csv"},
            "size": {"of": "employment", "classes": [0, 5, 1000, 1500, 2500, 5000]},
        },
        queries=[query | {"mechanism": {"kind": "gaussian", "sigma": 3}} for query in queries],
        derived=[{"name": "est_all", "count": "records", "by": ["naics2", "county"]}],
    )
    place = Place(world, folder)
    release = Path(place.out) / submit(place).release
    tables = prdp.reconcile(release, folder / "reconciled")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    answer = prdp.product(folder / "reconciled", folder / "made", product=folder / "small.yaml")
    return Made(folder, release, tables, answer)


def test_a_layout_without_its_table_is_left_out_and_the_rest_verifies(sized: Made) -> None:
    assert sized.answer["left_out"] == ["none.txt"]
    assert prdp.verify(sized.folder / "made").files == len(sized.answer["files"])
    assert sized.layout("cd").name.tolist() == ["District 0101", "District 0602"]
    sized.product([sized.folder / "reconciled", sized.release], "again")
    archives = [sized.folder / made / "layouts" / "cd.zip" for made in ("made", "again")]
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_what_was_not_measured_cannot_be_shown_as_released(sized: Made) -> None:
    (layout,) = (each for each in SMALL["layouts"] if "est_all" in str(each))
    rows = [each | {"values": each["values"] | {"est": "est_all"}} for each in layout["rows"]]
    made = SMALL | {"layouts": [layout | {"rows": rows}]}
    (sized.folder / "derived.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    with pytest.raises(PlanError, match=r"no folder has the table est_all: no release measured it: show the figures"):
        prdp.product(sized.release, sized.folder / "no", product=sized.folder / "derived.yaml", released=True)


def test_figures_are_withheld_by_their_intervals_and_ranges_are_whole(sized: Made) -> None:
    found, spread = sized.layout("co"), sized.layout("co_ranges")
    cells = sized.tables["est_all"].sort_values(["county", "naics2"])
    assert found.fips.tolist() == [county[2:] for county in cells.county]
    lower, upper = np.ceil(cells.lower - 1e-6), np.floor(cells.upper + 1e-6)  # numbers of establishments are whole
    lower, upper = np.where(lower > upper, [np.floor(cells.lower), np.ceil(cells.upper)], [lower, upper])
    outside = (cells.display < lower) | (cells.display > upper)
    withheld = ((cells.lower <= 0) | (cells.standard_error >= cells.value) | outside).to_numpy()
    assert 0 <= withheld.sum() < len(found)
    assert (found.est.isna() == withheld).all()
    assert (found.est_nf[withheld] == "S").all()
    assert (found.est[~withheld] == cells.display.to_numpy()[~withheld]).all()
    assert (spread.est_low == np.maximum(lower, 0)).all()
    assert (spread.est_high == np.maximum(upper, 0)).all()
    shown = found.est.notna()
    assert ((spread.est_low[shown] <= found.est[shown]) & (found.est[shown] <= spread.est_high[shown])).all()


def test_a_file_of_reconciled_tables_adds_up_in_each_row(sized: Made) -> None:
    found, sizes = sized.layout("co"), [each["name"] for each in SIZES]
    complete = found.dropna(subset=["est", *sizes])
    assert len(complete)
    assert (complete[sizes].sum(axis=1) == complete.est).all()
    assert (complete[["n2", "n3", "n4", "n5"]].sum(axis=1) == complete.n1000).all()
    assert found.n9.isna().all()
    wanted = sized.tables["emp"].query("size == '5-999'").sort_values(["county", "naics2"]).display.to_numpy()
    assert (found.e1 == wanted)[found.e1.notna()].all()
    research = pq.read_table(sized.folder / "made" / "research" / "all.parquet").to_pandas()
    turned = sized.tables["est"].set_index(["county", "size", "naics2"]).value
    keys = list(zip(research.county, research["size"], research.naics2, strict=True))
    assert (turned[keys] == research.est.to_numpy()).all()


def some_rows(by: dict[str, tuple[str, ...]], group: int | None = 1, *, adds_up: bool = True) -> Rows:
    """Return rows of a layout without files: an area by these levels, with a figure est and its part n."""
    rows = object.__new__(Rows)
    source = SimpleNamespace(reconciled=True, group=group, adds_up=adds_up)
    rows.area, rows.by, rows.limits = "state", ["state", *by], []
    rows.codes = {level: pa.array(codes) for level, codes in by.items()}
    rows.count = int(np.prod([len(codes) for codes in by.values()], dtype=int))
    rows.layout = cast("Any", SimpleNamespace(sums={"est": ["n"]}, withhold=None))
    cells = SimpleNamespace(grid=SimpleNamespace(source=source), of={})
    rows.cells = {name: (name, cast("Any", cells)) for name in ("est", "n")}
    return rows


def figures(low: Any, high: Any) -> Figures:
    none = np.zeros(np.shape(high))
    return Figures(none, none > 0, none.astype(np.int8), none + low, np.asarray(high), none, none > 0)


def test_ranges_of_parts_end_with_their_total_and_miss_half_as_often_again() -> None:
    """A part of 3 alone or beside 57, errors of any correlation; 20,000 draws: 8.1 % is 3.2 deviations above 7.5 %."""
    rng, rows = np.random.default_rng(31), some_rows({})

    def ends(own: tuple[Any, Any], total: Any) -> tuple[Any, Any]:
        known = {("est", ()): figures(0, total), ("n", ()): figures(*own)}
        rows._end_with_totals(known)
        return known["n", ()].lower, known["n", ()].upper

    for correlation in (-0.9, 0.0, 0.9):
        for rest, spread in ((0, 1.0), (57, 20.0)):
            one, other = rng.normal(0, 1, (2, 20_000))
            part, total = 3 + 4.0 * one, 3 + rest + spread * (correlation * one + np.sqrt(1 - correlation**2) * other)
            own = part - 1.96 * 4, part + 1.96 * 4
            low, high = ends(own, total + 1.96 * spread)
            assert ((low > 3) | (high < 3)).mean() < 0.081
            assert (high <= own[1]).all()
            if not rest:
                assert (high < own[1]).mean() > 0.8
                low, high = ends(own, total)  # the twin ends where the total's value is
                assert ((low > 3) | (high < 3)).mean() > 0.2


def test_ranges_of_rows_end_with_the_row_that_they_are_part_of() -> None:
    sectors, forms = ("11", "21"), ("C", "P", "S")
    all_of, by_sector, by_form = some_rows({}), some_rows({"naics2": sectors}), some_rows({"form": forms})
    both, others = some_rows({"naics2": sectors, "form": forms}), some_rows({"naics2": ("11", "99")})
    shown = [
        {"est": figures(0, [[90.0]] * 2), "n": figures(0, [[80.0]] * 2)},
        {"est": figures(0, [[50.0, 7.0], [1.0, 2.0]]), "n": None},
        {"est": figures(0, [[100.0, 5.0, 200.0]] * 2), "n": figures(0, [[9.0] * 3] * 2)},
        {"est": figures([[0, 0, 60, 0, 0, 0]], [[60.0, 40, 70, 3, 9, 8]] * 2), "n": figures(0, [[99.0] * 6] * 2)},
        {"est": figures(0, [[100.0, 5.0]] * 2), "n": None},
    ]
    stacks = [all_of, by_sector, by_form, both, others]
    ended = _ended(stacks, shown)
    upper = [None if each["est"] is None else each["est"].upper.tolist() for each in ended]
    assert upper[0] == [[90.0]] * 2
    assert upper[1] == [[50.0, 7.0], [1.0, 2.0]]
    assert upper[2] == [[90.0, 5.0, 90.0]] * 2
    assert upper[3] == [[50.0, 40, 70, 3, 7, 7], [1.0, 1, 70, 2, 2, 2]]  # of its sector; where it begins above: its own
    assert upper[4] == [[90.0, 5.0]] * 2  # other sectors: the state's alone
    assert ended[3]["n"] == shown[3]["n"]  # its sector shows none
    # the twins: nothing ends where tables do not add up with each other, or count owners
    for wrong in (some_rows({}, group=2), some_rows({}, group=None), some_rows({}, adds_up=False)):
        assert _ended([wrong, by_form], [shown[0], shown[2]])[1]["est"] == shown[2]["est"]


def test_released_figures_are_shown_only_where_they_are_asked_for(sized: Made) -> None:
    with pytest.raises(PlanError, match="small shows reconciled figures"):
        sized.product(sized.release, "refused")
    short = SMALL | {"tables": [], "layouts": [LAYOUT | {"sums": {"est": ["n0", "n1"]}}]}
    (sized.folder / "short.yaml").write_text(yaml.safe_dump(short, sort_keys=False))
    told = "co.txt: est is not the sum of n0, n1: the tables est_all and est"  # a class that is left out is noticed
    with pytest.raises(PlanError, match=told):
        prdp.product(sized.folder / "reconciled", sized.folder / "short", product=sized.folder / "short.yaml")
    prdp.product(sized.release, sized.folder / "released", product=sized.folder / "short.yaml", released=True)
