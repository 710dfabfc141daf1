"""What users choose where tables are reconciled: sums, fixed and expected totals, what is left out; and mistakes."""

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prdp
from jobs.cli import main
from prdp import PlanError
from tests.publication.test_reconcile import GAUSSIAN, LAPLACE, dense, query, released, variance_of
from tests.support.many_keys import ALL, SECTOR, coded, microdata, public_cells
from tests.support.submit import KEY
from udfs.estimates import solve
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import CellBits, SecretKey

CELLS = np.arange(40_000, dtype=np.uint64)
LOG = {"kind": "log", "a": 20, "sigma": 0.3}
QUERIES = [
    query("n3_county", ["naics3", "county"], GAUSSIAN),
    query("n2_state", ["naics2", "state"], LAPLACE),
    query("pay", ["naics3", "county"], LOG, sum="payroll"),
    query("pay_state", ["naics2", "state"], LOG | {"sigma": 0.2}, sum="payroll"),
    query("pay_median", ["naics2", "state"], LOG | {"estimator": "median"}, sum="payroll"),
]
EXPECTED = "naics2,value\n31-33,9000\n44-45,4000\n72,4000\n"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("release"), QUERIES)


def file(folder: Path, text: str, name: str = "totals.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def without_payroll(**more: Any) -> dict[str, Any]:
    return {"leave_out": ["pay", "pay_state"]} | more


def test_a_sum_has_the_value_and_the_error_of_its_table(release: Path, tmp_path: Path) -> None:
    made = prdp.reconcile(release, tmp_path / "out", **without_payroll())
    table = made["n2_state"].set_index(["naics2", "state"])
    one = made.sum("naics2=44-45, state in 06", of="records")
    cell = table.loc[("44-45", "06")]
    assert (one.value, one.keys) == (cell.value, ("county", "naics"))
    np.testing.assert_allclose([one.standard_error, one.lower, one.upper], cell[["standard_error", "lower", "upper"]])
    both = made.sum({"naics2": ["44-45"], "state": ["06", "36"]}, of="records")
    assert round(both.value, 3) == round(cell.value + table.value[("44-45", "36")], 3)
    # Independent published cells of one chain: variances add up; all cells together are better known than that.
    np.testing.assert_allclose(
        both.standard_error**2, cell.standard_error**2 + table.standard_error[("44-45", "36")] ** 2
    )
    everything = made.sum(of="records")
    assert everything.value == pytest.approx(table.value.sum(), abs=0.01)
    assert everything.lower < everything.value - 2 * everything.standard_error


def test_fixed_totals_hold_and_weigh_nothing_else(release: Path, tmp_path: Path) -> None:
    release = released(tmp_path, QUERIES[:2], ("naics", "county"))  # where every table needs both codes
    truth = coded(microdata(400)).dropna(subset=["naics6", "county"]).state.value_counts()
    text = "state,value\n" + "".join(f"{state},{total}\n" for state, total in truth.items() if state != "06")
    made = prdp.reconcile(release, tmp_path / "made", fixed={"records": file(tmp_path, text)})
    sums = made["n2_state"].groupby("state").value.sum().round(3)
    free = prdp.reconcile(release, tmp_path / "free")["n2_state"].groupby("state").value.sum()
    assert {state: sums[state] for state in ("01", "36")} == {state: truth[state] for state in ("01", "36")}
    assert sums["06"] == round(free["06"], 3) != truth["06"]
    assert made.sum("state=01", of="records").standard_error == pytest.approx(0, abs=1e-6)
    assert (made["n3_county"].standard_error < GAUSSIAN["sigma"]).all()


def test_weights_of_transformed_noise_come_from_elsewhere(release: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"pay, pay_state is larger .* expected= MEASURE=FILE"):
        prdp.reconcile(release, tmp_path / "out")
    by_file = prdp.reconcile(release, tmp_path / "file", expected={"payroll": file(tmp_path, EXPECTED)})
    group = next(each for each in by_file.facts["groups"] if "pay" in each["tables"])
    assert group["unweighted"].keys() == {"pay_median"}
    assert "median" in group["unweighted"]["pay_median"]
    by_table = prdp.reconcile(release, tmp_path / "table", weights_from=["pay_state"])
    assert "weights are made from it" in str(by_table.facts["groups"])
    of_table = {name: facts["at_expected_totals"] for name, facts in by_file.facts["tables"].items()}
    assert of_table["pay"]
    assert of_table["pay_state"]
    assert not of_table["n2_state"]
    assert by_file.sum("state=01", "payroll").at_expected_totals
    assert not by_file.sum("state=01", "records").at_expected_totals
    # The weights differ, and so do estimates, which add up in both cases.
    assert not np.allclose(by_file["pay"].value, by_table["pay"].value)
    for made in (by_file, by_table):
        assert made.verify().sums > 0
        states = made["pay"].groupby(made["pay"].county.str[:2]).value.sum()
        np.testing.assert_allclose(states, made["pay_state"].groupby("state").value.sum())


def test_expected_totals_are_shared_out_evenly(release: Path, tmp_path: Path) -> None:
    """Three sectors of 4 industries and 5 counties: 9,000 in sector 31-33 are 900 in each of its 10 finest cells."""
    made = prdp.reconcile(
        release, tmp_path / "out", expected={"payroll": file(tmp_path, EXPECTED)}, leave_out=["pay_state"]
    )
    mechanism = prdp.mechanisms.Log(a=20, sigma=0.3, step=0.5)
    errors = made["pay"].set_index(["naics3", "county"]).standard_error
    for industry, finest, total in (("311", 2, 900), ("445", 1, 800), ("722", 1, 800)):
        np.testing.assert_allclose(errors[industry], mechanism.standard_error(finest * total), rtol=0.02)


def test_weights_from_the_values_themselves_would_bias_estimates() -> None:
    """Two noisy values of one total by the logarithm, which say that they are precise where they came out low."""
    mechanism, total, draws = build(LOG, Fraction(1)), 500, 40_000
    totals, half = np.full(draws, total), Fraction(1, 2)
    bits = [CellBits(key=SecretKey(KEY), query=query, cells=CELLS[:draws]) for query in (0, 1)]
    values = [mechanism.release(totals, each, half) for each in bits]
    fixed = sum(each.value for each in values) / 2
    weights = [1 / each.standard_error**2 for each in values]
    from_themselves = sum(w * each.value for w, each in zip(weights, values, strict=True)) / sum(weights)
    error = np.std(fixed) / draws**0.5
    assert abs(np.mean(fixed) - total) < 5 * error  # one in a million fails
    assert np.mean(from_themselves) < total - 20 * error


def test_a_whole_table_of_fixed_totals_is_shown_as_it_is(tmp_path: Path) -> None:
    release = released(tmp_path, QUERIES[:2], ("naics", "county"))
    cells = [(n, s) for n in ("31-33", "44-45", "72") for s in ("01", "06", "36")]
    text = "naics2,state,value\n" + "".join(f"{n},{s},9\n" for n, s in cells)
    made = prdp.reconcile(release, tmp_path / "made", fixed={"records": file(tmp_path, text)})
    assert (made["n2_state"].value == 9).all()
    assert (made["n2_state"].display == 9).all()
    assert made.verify().sums == 9


def test_two_releases_of_a_dataset_are_reconciled_together(tmp_path: Path) -> None:
    one = released(tmp_path / "1", [query("a", ["naics3", "county"], GAUSSIAN)])
    two = released(tmp_path / "2", [query("b", ["naics3", "county"], GAUSSIAN), query("c", ["nation"], LAPLACE)])
    made = prdp.reconcile([one, two], tmp_path / "out")
    np.testing.assert_array_equal(made["a"].value, made["b"].value)
    assert [each["release"] for each in made.facts["releases"]] == ["keys", "keys"]
    with pytest.raises(PlanError, match="both releases have a table a"):
        prdp.reconcile([one, one], tmp_path / "twice")
    with pytest.raises(PlanError, match="different datasets"):
        prdp.reconcile([one, released(tmp_path / "3", QUERIES[:1], dataset={"name": "other"})], tmp_path / "x")
    keys = ("naics", "county")
    fewer = released(tmp_path / "4", [query("d", ["naics3", "county"], GAUSSIAN)], keys)
    with pytest.raises(PlanError, match="lists of codes differ"):
        prdp.reconcile([one, fewer], tmp_path / "x")


def test_an_older_release_needs_its_plan(release: Path, tmp_path: Path) -> None:
    older = shutil.copytree(release, tmp_path / "older")
    (structure,) = older.glob("*/structure.json")
    structure.unlink()
    manifest = json.loads((older / "release.json").read_text())
    manifest["files"] = [each for each in manifest["files"] if "structure" not in each["path"]]
    (older / "release.json").write_text(json.dumps(manifest))
    with pytest.raises(PlanError, match=r"has no structure\.json.*plans="):
        prdp.reconcile(older, tmp_path / "out", **without_payroll())
    plan = release.parents[1] / "plan.yaml"
    made = prdp.reconcile(older, tmp_path / "out", plans=[plan], **without_payroll())
    newer = prdp.reconcile(release, tmp_path / "newer", **without_payroll())
    pd.testing.assert_frame_equal(made["n2_state"], newer["n2_state"])
    plan.write_text(plan.read_text().replace("sigma: 4", "sigma: 5"))
    with pytest.raises(PlanError, match="none of the plans given is its own"):
        prdp.reconcile(older, tmp_path / "x", plans=[plan], **without_payroll())


def totals(*lines: str, option: str = "--fixed") -> Callable[[Path], list[Any]]:
    """The options that name a file of totals of records with these lines."""
    return lambda folder: [option, f"records={file(folder, chr(10).join(lines))}"]


MISTAKES: dict[str, tuple[Callable[[Path], list[Any]], str]] = {
    "unknown table left out": (lambda _: ["--leave-out", "pai"], "--leave-out pai: no release has this table; nearest"),
    "unknown table for weights": (lambda _: ["--weights-from", "x"], "--weights-from x: no release has this table"),
    "unknown measure": (lambda p: ["--fixed", f"sales={file(p, EXPECTED)}"], "--fixed sales=.*no table is of it"),
    "no such file": (lambda p: ["--fixed", f"records={p / 'none.csv'}"], "none.csv: cannot be read"),
    "unknown level": (totals("stat,value"), "column stat: unknown level; nearest known level: state"),
    "off the domain": (totals("state,value", "99,1"), 'column state: the domain has no code "99"'),
    "twice": (totals("state,value", "01,1", "01,2"), "a cell stands twice"),
    "off the step": (totals("state,value", "01,1.5"), "no multiple of the measure's step, 1"),
    "other records": (totals("state,value", "01,1"), "no table totals count of records of the same records"),
    "no number": (totals("state,value", "01,many"), "row 1: value: a finite number is needed"),
    "no totals": (totals("naics2,state,value"), "it holds no totals"),
    "beyond all totals": (totals("naics2,state,value", "31-33,01,1e19"), "row 1: value: no total is beyond"),
    "a wrong file that is not needed": (
        totals("naics2,state,value", "31-33,01,inf", option="--expected"),
        "row 1: value: a finite number is needed",
    ),
    "two files of a measure": (
        lambda p: [*["--fixed", f"records={file(p, EXPECTED)}"] * 2],
        "--fixed: two files of one measure",
    ),
    "unknown code": (lambda _: ["--sum", "state=99", "--of", "records"], 'no code "99" at level state'),
    "no measure said": (lambda _: ["--sum", "state=01"], "--of is needed: tables total records, payroll"),
    "not told apart": (lambda _: ["--sum", "naics6=311811", "--of", "records"], "do not tell them from others"),
    "no such key": (lambda _: ["--sum", "form=C", "--of", "records"], "form"),
    "no filter": (lambda _: ["--sum", "31-33", "--of", "records"], "write level=code"),
    "too large": (lambda _: ["--max-cells", "3"], r"15 \(3 of naics × 5 of county\), more than --max-cells 3"),
    "nothing to do": (lambda _: [], "give --out DIR"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_with_a_plain_line_and_exit_code_2(
    release: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, told = MISTAKES[name]
    out = [] if name == "nothing to do" else ["--out", tmp_path / "out"]
    call = ["reconcile", release, *out, "--leave-out", "pay", "--leave-out", "pay_state", *options(tmp_path)]
    assert main([str(each) for each in call]) == 2
    errors = capsys.readouterr().err
    assert pd.Series([errors]).str.contains(told).all(), errors
    assert len(errors.strip().splitlines()) <= 2
    assert not (tmp_path / "out" / "reconciled.json").exists()


def test_the_command_writes_what_the_function_returns(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["reconcile", release, "--out", tmp_path / "out", "--leave-out", "pay", "--leave-out", "pay_state"]
    call += ["--sum", "naics2=31-33, state in 06,36", "--of", "records"]
    assert main([*map(str, call), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (told,) = printed.pop("sums")
    assert printed == json.loads((tmp_path / "out" / "reconciled.json").read_text())
    made = prdp.reconcile(release, **without_payroll())
    assert told == made.sum("naics2=31-33, state in 06,36", of="records").to_json()
    assert told["where"] == {"naics2": ["31-33"], "state": ["06", "36"]}
    assert list(made) == []
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "cells are the sums of finer ones" in capsys.readouterr().out
    assert main(list(map(str, call))) == 5  # the folder is not empty
    call[3] = tmp_path / "again"
    capsys.readouterr()
    assert main(list(map(str, call))) == 0
    out = capsys.readouterr().out
    assert "records, naics2 in 31-33, state in 06,36: " in out
    assert "pay_median: not reconciled: its estimates are median-unbiased" in out
    with pytest.raises(PlanError, match="needs the releases"):
        prdp.read_reconciled(tmp_path / "out").sum("state=01", of="records")


def test_withheld_parameters_and_withdrawn_releases_are_refused(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = json.loads

    def without(text: Any) -> Any:
        found = real(text)
        for each in found.get("queries", []):
            each["mechanism"].pop("sigma", None)
        return found

    monkeypatch.setattr(json, "loads", without)
    with pytest.raises(PlanError, match="does not tell the noise of the table n3_county"):
        prdp.reconcile(release, **without_payroll())
    monkeypatch.undo()
    withdrawn = tmp_path / "withdrawn"
    withdrawn.mkdir()
    (withdrawn / "withdrawn.json").write_text('{"withdrawn": "2026-01-01"}')
    assert main(["reconcile", str(withdrawn), "--out", str(tmp_path / "out")]) == 5
    assert main(["reconcile", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 5


DERIVED = [
    {"name": "sector", "by": ["naics2", "nation"], "count": "records", "title": "By sector", "unit": "shops"},
    {"name": "food", "by": ["cbsa"], "count": "records", "where": {"naics3": ["311", "445"]}},
    {"name": "nation", "by": ["naics2", "nation"], "sum": "employment"},
]
MEASURED = [*QUERIES[:2], query("emp", ["naics2", "state", "size"], GAUSSIAN, sum="employment")]


@pytest.fixture(scope="module")
def deriving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("deriving"), MEASURED, derived=DERIVED)


def sector(code: str) -> str:
    return SECTOR.get(code[:2], code[:2])


def test_a_derived_table_is_the_best_estimate_of_what_nobody_measured(deriving: Path, tmp_path: Path) -> None:
    made = prdp.reconcile(deriving, tmp_path / "out", csv=True)
    assert set(made) == {each["name"] for each in (*MEASURED, *DERIVED)}
    cells = public_cells(ALL)[["naics3", "naics2", "county", "state", "nation", "cbsa"]].drop_duplicates()
    frames = {name: made[name] for name in ("n3_county", "n2_state")}
    for name in ("sector", "food"):
        assert [*made[name].columns[-5:]] == ["value", "lower", "upper", "standard_error", "display"]
        frames[name] = made[name].assign(published=np.nan)
    weights = {"n3_county": variance_of(GAUSSIAN), "n2_state": variance_of(LAPLACE)}
    found = dense(frames, weights, cells, {"food": cells.naics3.isin(["311", "445"])})
    for name in ("sector", "food"):
        values, variances = found[name]
        np.testing.assert_allclose(made[name].value, values, atol=0.01)
        np.testing.assert_allclose(made[name].standard_error ** 2, variances, rtol=1e-6)
        assert made.facts["tables"][name]["derived"]
    # Sums of the finest table as published are another, wider figure.
    finest = made["n3_county"].assign(naics2=[sector(code) for code in made["n3_county"].naics3])
    assert np.abs(finest.groupby("naics2").published.sum().to_numpy() - made["sector"].value).max() > 0.5
    assert made["sector"].display.tolist() == made["n2_state"].groupby("naics2").display.sum().tolist()
    assert made.verify().sums > sum(len(made[each["name"]]) for each in DERIVED)
    assert "derived" in made.facts["groups"][0]["unweighted"]["sector"]
    package = json.loads((tmp_path / "out" / "datapackage.json").read_text())
    (about,) = (each for each in package["resources"] if each["name"] == "sector")
    assert (about["title"], about["unit"], about["path"]) == ("By sector", "shops", "tables/sector.parquet")
    assert "published" not in {field["name"] for field in about["schema"]["fields"]}
    assert len(made.export("duckdb", tmp_path / "duckdb")["tables"]) == len(made)
    assert (tmp_path / "out/codes/cbsa.csv").read_text().startswith('"code","name"')
    assert pd.read_csv(tmp_path / "out/tables/food.csv", dtype={"cbsa": str}).cbsa.tolist() == [*made["food"].cbsa]


def test_a_derived_table_costs_nothing_and_changes_no_other(deriving: Path, tmp_path: Path) -> None:
    without = released(tmp_path / "without", MEASURED)
    one, other = (prdp.read_release(folder) for folder in (deriving, without))
    assert {*one} == {*other} == {each["name"] for each in MEASURED}
    for name in one:
        pd.testing.assert_frame_equal(one[name], other[name])
    plans = [prdp.load_plan(folder.parents[1] / "plan.yaml") for folder in (deriving, without)]
    assert (plans[0].derived, plans[1].derived) == (("sector", "food", "nation"), ())
    losses = [plan.explain().to_json() for plan in plans]
    assert losses[0].pop("derived")[0]["made"] == "when reconciled"
    assert losses[0].pop("plan_digest") != losses[1].pop("plan_digest")
    for each in losses:  # what is lost, not the errors of what is derived
        del each["verdict"]["tables"]
        for asked in each["queries"]:
            del asked["accuracy"]
    assert losses[0] == losses[1]
    assert plans[1].digest == prdp.load_plan(plans[1].source | {"derived": []}, folder=without.parents[1]).digest
    (attempt,) = (path for path in deriving.iterdir() if path.is_dir())
    structure = json.loads((attempt / "structure.json").read_text())
    assert [each["name"] for each in structure["derived"]] == ["sector", "food", "nation"]
    page = (deriving / "index.html").read_text()
    assert "By sector (3 cells, in shops)" in page
    assert "Derived tables" not in (without / "index.html").read_text()


def test_without_its_measured_table_a_derived_one_is_not_made(deriving: Path, tmp_path: Path) -> None:
    made = prdp.reconcile(deriving, tmp_path / "out", leave_out=["n3_county"])
    assert "sector" in made
    assert "derived: no release measured it" in made.facts["not_reconciled"]["food"]


CROSSING = [query("n6_state", ["naics6", "state"], GAUSSIAN), query("n2_county", ["naics2", "county"], LAPLACE)]


def test_tables_whose_common_cells_are_not_enumerated_agree_and_are_verified_two_by_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = released(tmp_path, CROSSING)
    one = prdp.reconcile(folder, tmp_path / "one")
    monkeypatch.setattr(solve, "ENUMERATED", 0)
    two = prdp.reconcile(folder, tmp_path / "two")
    for name in ("n6_state", "n2_county"):
        np.testing.assert_allclose(two[name].value, one[name].value, atol=2e-4 * one[name].standard_error.max() + 0.002)
        np.testing.assert_allclose(two[name].standard_error, one[name].standard_error, rtol=1e-5)
    tables = [_by_state(two[name]) for name in ("n6_state", "n2_county")]
    sums = [table.groupby(["naics2", "state"])[["value", "display"]].sum() for table in tables]
    np.testing.assert_allclose(sums[0], sums[1], rtol=0, atol=1e-6)
    picked = [made.sum("naics2=44-45, state in 06", of="records") for made in (one, two)]
    assert picked[0].standard_error == pytest.approx(picked[1].standard_error, rel=1e-6)
    assert two.verify().sums > 0
    path = tmp_path / "two" / "tables" / "n2_county.parquet"
    wrong = pd.read_parquet(path)
    wrong["display"] += (np.arange(len(wrong)) == 3).astype(np.int64)
    wrong.to_parquet(path)
    manifest = json.loads((tmp_path / "two" / "reconciled.json").read_text())
    for file_facts in manifest["files"]:
        if file_facts["path"] == "tables/n2_county.parquet":
            file_facts |= {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
    (tmp_path / "two" / "reconciled.json").write_text(json.dumps(manifest))
    with pytest.raises(prdp.StateError, match="display of the tables n6_state and n2_county do not have the same sums"):
        prdp.read_reconciled(tmp_path / "two").verify()


def _by_state(table: pd.DataFrame) -> pd.DataFrame:
    state = table.state if "state" in table else table.county.str[:2]
    sector = table.naics2 if "naics2" in table else table.naics6.str[:2].replace(SECTORS)
    return table.assign(state=state, naics2=sector)


SECTORS = {
    str(code): f"{first}-{last}" for first, last in ((31, 33), (44, 45), (48, 49)) for code in range(first, last + 1)
}
