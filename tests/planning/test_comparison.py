"""All families at equal accuracy: the same accuracy for all, and losses that are those of the policy functions."""

from fractions import Fraction
from itertools import product
from math import sqrt, tanh
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sizes import RECORDS, SEED, write
from pipeline.accounting.targets import BUILT_IN, ONE_EACH, Sizes, Target, read_sizes
from pipeline.base.errors import PlanError
from pipeline.planning.economy import susb
from pipeline.planning.study.comparison import FAMILIES, Comparison, Objective, compare, notes, shapes, table, to_json
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import up_text

TARGET = Target.of("standard_error", standard_error=Fraction(30), total=Fraction(500))
NO_VARIANCE, COUNTS_ONLY = {"symmetric_stable"}, {"groupwise_log", "groupwise_noisy"}
COMPARED = CATALOGUE.keys() - {"designed"}  # whose noise has no scale to find
TIGHT = ("laplace", "generalized_gaussian", "exponential_polylog")
SIZES = Sizes(np.array([0.0, 1.0, 20.0, 4000.0]), np.array([5.0, 60.0, 30.0, 5.0]))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(TARGET, SIZES, Objective("largest", Fraction(1)))


def kinds(found: Comparison) -> set[str]:
    return {candidate.mechanism.kind for candidate in found.candidates}


def test_every_kind_with_a_variance_is_compared(found: Comparison) -> None:
    assert {kind for kind, _ in FAMILIES} == COMPARED
    assert kinds(found) == COMPARED - NO_VARIANCE - COUNTS_ONLY
    assert len(found.candidates) + len(found.left_out) == len(list(shapes()))


def test_kinds_that_are_left_out_say_why(found: Comparison) -> None:
    assert found.without.keys() == NO_VARIANCE | COUNTS_ONLY
    assert all("no standard error; ask for" in found.without[kind] for kind in NO_VARIANCE)
    assert all("--count compares them" in found.without[kind] for kind in COUNTS_ONLY)
    told = notes(found)
    assert all(any(line.startswith(f"Left out: {kind}: ") for line in told) for kind in found.without)


def test_kinds_for_counts_are_compared_where_records_are_counted() -> None:
    counted = compare(TARGET, ONE_EACH, Objective("mean"))
    assert kinds(counted) == COMPARED - NO_VARIANCE
    for candidate in counted.candidates:
        assert candidate.mean == candidate.largest == pytest.approx(float(candidate.mechanism.loss_at(Fraction(1))))
        assert sqrt(candidate.mechanism.variance(500.0)) == pytest.approx(30, rel=1e-5)


def test_beside_a_tight_policy_stands_the_papers_bound(found: Comparison) -> None:
    """tanh(P/2)·P of the same noise, by the formula; the ranking is by the tight one."""
    wrong, beside = [], 0
    for candidate in found.candidates:
        described = candidate.mechanism.describe()
        assert (candidate.paper is None) == (described.get("policy") != "tight")
        if candidate.paper is not None:
            beside += 1
            pure = [float(candidate.mechanism.pure_loss_at(Fraction(x)) or 0) for x in (0, 1, 20, 4000)]
            losses = [tanh(p / 2) * p for p in pure]
            assert candidate.paper.losses.tolist() == pytest.approx(losses, rel=1e-9)
            assert candidate.paper.mean == pytest.approx((60 * losses[1] + 30 * losses[2] + 5 * losses[3]) / 100)
            assert candidate.paper.quantiles[:2] == pytest.approx(losses[1:3])
            assert (candidate.losses <= candidate.paper.losses).all()
            wrong.append(candidate.losses.tolist() == pytest.approx(losses, rel=1e-9))
    assert beside == sum(len(list(product(*grid.values()))) for kind, grid in FAMILIES if kind in TIGHT)
    assert not any(wrong)  # the twin: the stated losses taken for the paper's
    told = to_json(found)
    for family, candidate in zip(told["families"], found.best, strict=True):
        assert (family["paper"] or {}).get("mean") == (candidate.paper.mean if candidate.paper else None)
    (heads, *lines) = table(found, (500.0,)).splitlines()
    assert heads.count("paper: ") == 3
    for line, candidate in zip(lines, found.best, strict=True):
        assert candidate.paper is None or f" {up_text(candidate.paper.mean, 4)} " in line


def test_all_have_the_accuracy_that_was_asked(found: Comparison) -> None:
    for candidate in found.candidates:
        assert 30 * (1 - 1e-12) <= sqrt(candidate.mechanism.variance(500.0)) <= 30 * (1 + 1e-5)


def test_losses_are_those_of_the_policies(found: Comparison) -> None:
    for candidate in found.candidates:
        at = [float(candidate.mechanism.loss_at(Fraction(x))) for x in (0, 1, 20, 4000)]
        assert candidate.largest == pytest.approx(at[3], rel=1e-9)
        assert candidate.mean == pytest.approx((60 * at[1] + 30 * at[2] + 5 * at[3]) / 100, rel=1e-9)
        within = sum(count for count, rho in zip((5, 60, 30, 5), at, strict=True) if rho <= 1)
        assert candidate.share == pytest.approx(within / 100)
        assert candidate.quantiles[:2] == pytest.approx((at[1], at[2]), rel=1e-9)


@pytest.mark.parametrize("name", ["largest", "mean", "share"])
def test_the_best_is_best_by_its_objective(found: Comparison, name: str) -> None:
    ranked = sorted(found.candidates, key=Objective(name, Fraction(1)).score)
    wanted = {
        "largest": min(candidate.largest for candidate in found.candidates),
        "mean": min(candidate.mean for candidate in found.candidates),
        "share": max(candidate.share or 0 for candidate in found.candidates),
    }
    assert getattr(ranked[0], name) == wanted[name]
    assert getattr(ranked[-1], name) != wanted[name]


def test_families_come_in_the_order_of_their_best(found: Comparison) -> None:
    assert len({candidate.family for candidate in found.candidates}) == len(found.best)
    assert [candidate.largest for candidate in found.best] == sorted(candidate.largest for candidate in found.best)
    for candidate in found.best:
        same = [other.largest for other in found.candidates if other.family == candidate.family]
        assert candidate.largest == min(same)


def test_slower_policies_cost_the_largest_record_less(found: Comparison) -> None:
    """The slides' finding, at equal variance: Gaussian Δ² ≫ Laplace Δ ≫ polylogarithmic noise for a giant."""
    of = {candidate.family: candidate for candidate in found.best}
    assert of["gaussian"].largest == pytest.approx(4000**2 / (2 * 30**2), rel=1e-5)
    assert of["laplace"].largest == pytest.approx(4000 * sqrt(2) / 30 - 1, rel=1e-3)  # P − 1 + e^(−P)
    assert of["exponential_polylog"].largest < of["laplace"].largest / 5 < of["gaussian"].largest / 100


def test_shapes_that_cannot_have_the_accuracy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipeline.planning.study.comparison.shapes", lambda: iter([("log", {"a": "1"}), ("gaussian", {})])
    )
    target = Target.of("standard_error", standard_error=Fraction(1, 10**9), total=Fraction(10**9))
    little = compare(target, SIZES, Objective("mean"))
    assert [candidate.mechanism.kind for candidate in little.candidates] == ["gaussian"]
    ((kind, shape, why),) = little.left_out
    assert (kind, shape) == ("log", {"a": "1"})
    assert "rounding" in why


def test_what_a_comparison_needs() -> None:
    with pytest.raises(ValueError, match="accuracy"):
        compare(Target.of("loss", loss=Fraction(1), influence=Fraction(1)), SIZES, Objective("mean"))
    for name, limit in (("best", None), ("share", None), ("mean", Fraction(0))):
        with pytest.raises(ValueError, match=r"objective|limit"):
            Objective(name, limit)


def test_noise_without_variance_can_be_compared_by_its_mean_error() -> None:
    target = Target.of("mean_absolute_error", mean_absolute_error=Fraction(20), total=Fraction(500))
    by_error = compare(target, SIZES, Objective("largest"))
    assert kinds(by_error) == COMPARED - COUNTS_ONLY
    assert [shape["alpha"] for kind, shape, _ in by_error.left_out if kind in NO_VARIANCE] == ["1"]  # Cauchy noise
    for candidate in by_error.candidates:
        assert 20 * (1 - 1e-9) <= candidate.mechanism.mean_absolute_error(500.0) <= 20 * (1 + 1e-5)


# -- sizes ----------------------------------------------------------------------------------------------------------


def test_the_sizes_that_come_with_prdp_are_those_of_the_synthetic_economy() -> None:
    """The table of 2021 has as many employees an establishment, within the counties and years that it lacks."""
    sizes = read_sizes()
    real = susb()
    assert sizes.records == RECORDS
    assert sizes.mean == pytest.approx(real.employment.sum() / real.establishments.sum(), rel=0.01)
    assert sizes.value[-1] > 10_000
    assert (np.diff(sizes.value) > 0).all()


@pytest.mark.drill
def test_the_sizes_in_conf_are_made_by_the_benchmark(tmp_path: Path) -> None:
    write(tmp_path / "sizes.csv", RECORDS, SEED)
    assert (tmp_path / "sizes.csv").read_bytes() == BUILT_IN.read_bytes()


def test_sizes_may_stand_in_any_order_and_twice(tmp_path: Path) -> None:
    (tmp_path / "sizes.csv").write_text("value,count\n10,2\n\n0.5,1\n10,3\n7,0\n")
    sizes = read_sizes(tmp_path / "sizes.csv")
    assert sizes.value.tolist() == [0.5, 10]
    assert sizes.count.tolist() == [1, 5]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the first line must be value,count"),
        ("size,count\n1,2\n", "the first line must be value,count"),
        ("value,count\n", "no record of a value above 0"),
        ("value,count\n0,5\n3,0\n", "no record of a value above 0"),
        ("value,count\n1,2\nx,2\n", "line 3: must be two numbers of at least 0"),
        ("value,count\n1\n", "line 2: must be two numbers of at least 0"),
        ("value,count\n1,2,3\n", "line 2: must be two numbers of at least 0"),
        ("value,count\n-1,2\n", "line 2: must be two numbers of at least 0"),
        ("value,count\n1,nan\n", "line 2: must be two numbers of at least 0"),
        ("value,count\n1e400,1\n", "line 2: must be two numbers of at least 0"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "sizes.csv").write_text(text)
    with pytest.raises(PlanError) as caught:
        read_sizes(tmp_path / "sizes.csv")
    assert str(caught.value) == f"{tmp_path / 'sizes.csv'}: {says}"
