"""What several years cost: sums of the plan's own policy, of a record that stays the same and of one that grows."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import prdp
from jobs.cli import main
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import left_out_test_of
from prdp import PlanError
from tests.support.plans import COUNTIES, NAICS

SIGMA = {"employment": 50, "payroll": 3000}


def plan_file(folder: Path, **domain: Any) -> Path:
    for file, codes in (("naics.csv", NAICS), ("counties.csv", COUNTIES)):
        (folder / file).write_text("\n".join(["code", *codes]))
    path = folder / "plan.yaml"
    path.write_text(
        "release: jobs\n"
        "dataset:\n  name: jobs\n  path: data\n  record: id\n  keys: {naics: naics, county: county}\n"
        "  measures:\n    employment: {column: e, type: integer}\n"
        "    payroll: {column: p, type: decimal, step: 0.5}\n"
        f"domain: {{naics: naics.csv, county: counties.csv{domain.get('more', '')}}}\n"
        "queries:\n  - name: both\n    sum: [employment, payroll]\n    by: [county]\n"
        f"    mechanism: {{kind: gaussian, sigma: {{employment: {SIGMA['employment']}, "
        f"payroll: {SIGMA['payroll']}}}}}\n"
        f"{domain.get('queries', '')}"
        "budget:\n  - {at: {employment: 10, payroll: 500}, rho: 5}\n"
    )
    return path


def closed_form(path: Path, years: int, growth: str) -> Fraction:
    """Return Σ over years of Σ Δ²/(2σ²), values rounded up to their steps, and the two counts' test of each year."""
    test = Fraction(left_out_test_of(load_plan(path)).sigma)
    total = Fraction(0)
    for year in range(years):
        for name, start, step in (("employment", 10, Fraction(1)), ("payroll", 500, Fraction(1, 2))):
            value = math.ceil(start * (1 + Fraction(growth)) ** year / step) * step
            total += value**2 / (2 * Fraction(SIGMA[name]) ** 2)
        total += 1 / (2 * test**2)
    return total


@pytest.mark.parametrize("years", [1, 2, 5, 10])
def test_they_are_sums_of_the_policies_of_each_year(tmp_path: Path, years: int) -> None:
    path = plan_file(tmp_path)
    for growth in ("0.05", "0.3", "0"):
        (row,) = prdp.load_plan(path).explain(years=years, growth=float(growth)).years.to_dict("records")
        assert row["rho_same"] == pytest.approx(float(closed_form(path, years, "0")), rel=1e-12)
        assert row["rho_growing"] == pytest.approx(float(closed_form(path, years, growth)), rel=1e-12)
        assert row["rho_growing"] >= float(closed_form(path, years, growth))  # rounded up
        assert row["rho_a_year"] * years == pytest.approx(row["rho_same"])
        if years > 1 and growth != "0":  # the broken twins: nobody grows, or grows without the step
            assert row["rho_growing"] > row["rho_same"] * 1.04
    stepless = 10 * 1.05 ** (years - 1)
    grown = prdp.load_plan(path).explain(years=years).to_json()["years"][0]["grows_to"][0]["employment"]
    assert grown == math.ceil(round(stepless, 9))


def test_a_class_follows_from_the_grown_value(tmp_path: Path) -> None:
    classes = ", size: {of: employment, classes: [0, 11]}"
    queries = (
        "  - name: small\n    sum: employment\n    by: [county]\n    where: {size: ['11+']}\n"
        "    mechanism: {kind: gaussian, sigma: 5}\n"
    )
    path = plan_file(tmp_path, more=classes, queries=queries)
    (row,) = prdp.load_plan(path).explain(years=2, growth=0.1).years.to_dict("records")
    # in its second year it has 11 employees, and is in one table more
    beyond = 11**2 / (2 * 5**2) - (Fraction(10) ** 2 - Fraction(11) ** 2) / (2 * Fraction(50) ** 2)
    beyond += (Fraction(550) ** 2 - Fraction(500) ** 2) / (2 * Fraction(3000) ** 2)
    assert row["rho_growing"] - row["rho_same"] == pytest.approx(float(beyond), rel=1e-9)


def test_the_command_says_so_in_three_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan_file(tmp_path)
    assert main(["explain", str(path), "--years", "5", "--growth", "0.05"]) == 0
    shown = capsys.readouterr().out
    assert "rho over 5 years" in shown
    assert "growing 5 % a year" in shown
    for call in (["--growth", "0.1"], ["--years", "101"], ["--years", "2", "--growth", "x"], ["--years", "0"]):
        assert main(["explain", str(path), *call]) == 2
    assert "goes with --years" in capsys.readouterr().err
    with pytest.raises(PlanError, match="growth=2: must be a share from 0 to 1"):
        prdp.load_plan(path).explain(years=3, growth=2)
