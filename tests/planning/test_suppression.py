"""Cell suppression: textbook rules, patterns against all patterns, the attacker's intervals, and a study of a plan."""

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.base.plots import Picture
from pipeline.plan.load import load_plan
from pipeline.planning.study import suppression as suppression_output
from pipeline.planning.study import suppression_program
from pipeline.planning.study.suppression_program import Linked, attacked, suppressed
from pipeline.planning.study.todays_practice import Contributions, Rules, by_rule
from udfs.mechanisms.additive_kinds import Laplace
from udfs.noise.keystream import SeededBits

PLAN = Path(__file__).parents[2] / "conf" / "plans" / "state-industry.yaml"


def asked(values: list[float], **rules: float) -> dict[str, float]:
    """The protection of one cell with these firms, by rule."""
    held = Rules.named(rules)
    firms = np.arange(len(values))
    of = Contributions.of(np.zeros(len(values), dtype=np.int64), firms, np.array(values, dtype=float), 1, held.n)
    return {rule: float(needed[0]) for rule, needed in by_rule(held, of).items()}


def test_the_p_percent_rule() -> None:
    """The second firm, which knows 30 of 95, estimates the first's 50 as at most 65: within 30 %, not within 20."""
    values = [50.0, 30, 10, 5]
    assert asked(values, p=20) == {"p_percent": 0}
    assert asked(values, p=30) == {"p_percent": 0}  # 15 is not below 30 % of 50
    assert asked(values, p=40) == {"p_percent": pytest.approx(5)}  # 20 − 15
    assert asked([50.0], p=10) == {"p_percent": pytest.approx(5)}
    assert asked([50.0, 49], p=10) == {"p_percent": pytest.approx(5)}


def test_the_dominance_rule() -> None:
    """80 of 95 are 84.2 %."""
    values = [5.0, 30, 50, 10]  # in any order
    assert asked(values, n=2, k=85) == {"dominance": 0}
    assert asked(values, n=2, k=80) == {"dominance": pytest.approx(5)}  # 80 are 80 % of 100
    assert asked(values, n=1, k=50) == {"dominance": pytest.approx(5)}  # 50 are 50 % of 100
    assert asked(values, n=3, k=94) == {"dominance": 1}  # 90 are 94 % of 95.7; one unit is the least


def test_the_threshold_counts_firms_not_establishments() -> None:
    held = Rules.named({"threshold": 3, "width": 20})
    cells, firms = np.array([0, 0, 0, 1, 1, 1, 2]), np.array([7, 7, 8, 1, 2, 3, 4])
    of = Contributions.of(cells, firms, np.array([4.0, 6, 10, 1, 1, 1, 0]), 4, held.n)
    assert of.firms.tolist() == [2, 3, 1, 0]
    assert of.largest[0].tolist() == [10, 10]
    assert by_rule(held, of)["threshold"].tolist() == [4, 0, 1, 0]  # at least 1, and nobody's cell is no secret


def table(values: np.ndarray) -> Linked:
    """A table with both margins and the grand total: sums are its cells, row by row, then rows, columns, total."""
    columns = values.shape[1]
    cells = np.arange(values.size)
    return Linked.of([cells, cells // columns, cells % columns, 0 * cells], values.ravel().astype(float))[0]


def safe(linked: Linked, hidden: np.ndarray, protection: np.ndarray) -> bool:
    """Whether SciPy's own attacker finds every interval wide enough."""
    matrix, total = linked.matrix.toarray(), linked.totals
    for i in np.flatnonzero(protection):
        for sign, end in ((-1, total[i] + protection[i]), (1, total[i] - min(protection[i], total[i]))):
            found = linprog(sign * matrix[i], A_eq=matrix[~hidden], b_eq=total[~hidden])
            if found.status != 3 and sign * (matrix[i] @ found.x - end) > 1e-6:
                return False
    return True


def least(linked: Linked, protection: np.ndarray) -> float:
    """The least total that must be hidden, over all patterns."""
    free, best = np.flatnonzero(protection == 0), np.inf
    for count in range(len(free) + 1):
        for chosen in combinations(free, count):
            hidden = protection > 0
            hidden[list(chosen)] = True
            cost = float(linked.totals[hidden].sum())
            if cost < best and safe(linked, hidden, protection):
                best = cost
    return best


def cases() -> Iterator[tuple[Linked, np.ndarray]]:
    random = np.random.default_rng(3)
    for primaries in (1, 1, 2, 3):
        linked = table(random.integers(1, 40, (3, 3)))
        protection = np.zeros(len(linked.totals))
        protection[random.choice(9, primaries, replace=False)] = random.integers(1, 6, primaries)
        yield linked, protection


def test_the_pattern_of_a_small_table_hides_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = []
    for linked, protection in cases():
        hidden, best = suppressed(linked, protection), least(linked, protection)
        assert safe(linked, hidden, protection)
        assert linked.totals[hidden].sum() == best
        monkeypatch.setattr(suppression_program, "SMALL", 0)
        hidden = suppressed(linked, protection)
        monkeypatch.undo()
        assert safe(linked, hidden, protection)
        one_by_one.append(linked.totals[hidden].sum() / best)
    assert min(one_by_one) >= 1
    assert max(one_by_one) < 1.5  # nearly as good, and never too little


def test_middling_tables_hide_no_complementary_sum_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the least pattern, which another test compares with all patterns."""
    random = np.random.default_rng(7)
    excess: dict[int, list[float]] = {0: [], suppression_program.TIDY: []}
    for _ in range(8):
        linked = table(np.rint(np.exp(random.normal(3, 1.5, (5, 6)))))
        protection = np.zeros(len(linked.totals))
        primary = random.choice(30, 4, replace=False)
        protection[primary] = np.maximum(1, 0.15 * linked.totals[primary])
        best = float(linked.totals[suppression_program.least_pattern(linked, protection)].sum())
        monkeypatch.setattr(suppression_program, "SMALL", 0)
        for most, found in excess.items():
            monkeypatch.setattr(suppression_program, "TIDY", most)
            hidden = suppressed(linked, protection)
            assert safe(linked, hidden, protection)
            found.append(float(linked.totals[hidden].sum()) / best - 1)
        for each in np.flatnonzero(hidden & (protection == 0)):
            assert not safe(linked, hidden & (np.arange(len(hidden)) != each), protection)
        monkeypatch.undo()
    untidied, tidied = (float(np.mean(found)) for found in excess.values())
    assert tidied < 0.08
    assert tidied < untidied / 1.5
    assert min(excess[suppression_program.TIDY]) >= -1e-9


def test_a_known_pattern() -> None:
    """The cheapest rectangle through the primary cell is the one of 1 + 2 + 3 + 4, and 2 and 3 can fall by 2."""
    linked = table(np.array([[4, 2, 50], [3, 1, 60], [70, 80, 90]]))
    protection = np.zeros(len(linked.totals))
    protection[0] = 1.0
    assert np.flatnonzero(suppressed(linked, protection)).tolist() == [0, 1, 3, 4]
    protection[0] = 3.0  # the 1 and the 2 cannot give so much: 4 may rise by 3 only if 2 and 3 fall by 3
    hidden = suppressed(linked, protection)
    assert np.flatnonzero(hidden).tolist() != [0, 1, 3, 4]
    assert safe(linked, hidden, protection)


def test_the_attacker_finds_what_is_not_protected() -> None:
    linked = table(np.array([[4, 2, 50], [3, 1, 60], [70, 80, 90]]))
    protection = np.zeros(len(linked.totals))
    protection[0] = 1.0
    patterns = {(0,): 4, (0, 1): 4, (0, 1, 2): 4, (0, 4): 4}  # in no rectangle: known exactly
    for pattern in patterns:
        hidden = np.isin(np.arange(len(linked.totals)), pattern)
        found = attacked(linked, hidden, protection)
        assert not found.protected[0]
        assert (found.low[0], found.high[0]) == (pytest.approx(4), pytest.approx(4))
    rectangle = np.isin(np.arange(len(linked.totals)), (0, 1, 3, 4))
    assert attacked(linked, rectangle, protection).protected[0]
    protection[0] = 3.0
    found = attacked(linked, rectangle, protection)  # Fréchet's bounds of a 2 × 2 table: 6 − 3 … 6, or 7 − 3 … 7
    assert not found.protected[0]
    assert (found.low[0], found.high[0]) == (pytest.approx(3), pytest.approx(6))


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 10**6))
def test_every_primary_sum_of_linked_tables_is_protected(seed: int) -> None:
    """Regions × industries with groups of both and margins; also groups are primary, and cells can be 0."""
    random = np.random.default_rng(seed)
    regions, industries = 4, 6
    values = random.integers(0, 30, regions * industries).astype(float) * (random.random(24) < 0.8)
    cell = np.arange(24)
    region, industry = cell // industries, cell % industries
    positions = [cell, region * 3 + industry // 2, region, industry, industry // 2, region // 2, 0 * cell]
    linked, numbers = Linked.of(positions, values)
    assert all(
        (np.bincount(p, weights=values) == linked.totals[n]).all() for p, n in zip(positions, numbers, strict=True)
    )
    protection = np.where(random.random(len(linked.totals)) < 0.15, random.integers(1, 8, len(linked.totals)), 0.0)
    hidden = suppressed(linked, protection)
    assert (hidden >= (protection > 0)).all()
    assert safe(linked, hidden, protection)
    assert attacked(linked, hidden, protection).protected.all()
    primary = attacked(linked, protection > 0, protection)
    assert primary.protected[protection > 0].all() == safe(linked, protection > 0, protection)


def test_seeded_bits_draw_the_noise() -> None:
    """Laplace noise from seeded bits has its scale; another seed or stream has other noise."""
    mechanism, zeros = Laplace(sigma=10), np.zeros(40_000, dtype=np.int64)
    addresses = ((1, 1), (1, 1), (2, 1), (1, 2))
    drawn = [mechanism.release(zeros, SeededBits(len(zeros), *each), Fraction(1, 2)).value for each in addresses]
    assert (drawn[0] == drawn[1]).all()
    for other in drawn[2:]:
        assert abs(np.corrcoef(drawn[0], other)[0, 1]) < 0.03
    assert abs(float(np.mean(np.abs(drawn[0]))) - 10) < 5 * 10 / np.sqrt(len(zeros))


# -- a plan ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = prdp.generate_like("cbp-2011", tmp_path_factory.mktemp("like") / "data", states=["56", "50"])
    plan.write_text(PLAN.read_text())
    return plan


def test_a_plan_beside_suppression(like: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = ("us_naics3", "st_total", "st_naics2", "st_naics3")
    out = tmp_path / "out"
    call = ["evaluate", "--suppression", str(like), "--tables", ",".join(tables), "--out", str(out)]
    assert main(call) == 0
    text, made = capsys.readouterr().out, json.loads((out / "suppression.json").read_text())
    assert {path.name for path in out.iterdir()} == {"suppression.json", "suppression.svg", "suppression.png"}
    assert made == prdp.suppression(like, tables=tables)
    assert made["attack"]["after"] == {"exactly": 0, "exactly_share": 0, "too_near": 0, "too_near_share": 0}
    assert made["attack"]["before"]["exactly"] > 0  # what the attack is for
    assert made["attack"]["multiplicative noise"]["too_near_share"] > made["attack"]["prdp"]["too_near_share"]
    assert "by margins, with it" in text

    data = pd.read_parquet(like.parent / "microdata")
    data["st_total"] = data.county.str[:2]
    sector = data.naics.str[:2].replace({"32": "31", "33": "31", "45": "44", "49": "48"})
    data["st_naics2"] = data.st_total + sector
    data["us_naics3"], data["st_naics3"] = data.naics.str[:3], data.st_total + data.naics.str[:3]
    for stated in made["tables"]:
        firms = data.groupby([stated["name"], "firm_id"]).employment.sum().reset_index()
        cells = firms.groupby(stated["name"]).employment.agg(list)
        assert stated["cells"] == len(cells)
        assert stated["primary"] == sum(map(primary_by_hand, cells))
        assert 0 <= stated["measure_share"] <= stated["cells_share"] <= 1  # small cells are hidden
    assert made["tables"][-1]["primary"] > 0
    curves = [query.mechanisms[0] for query in load_plan(like).queries if query.name in tables]
    assert made["losses"][0]["tables"] == pytest.approx(sum(float(curve.loss_at(Fraction(10))) for curve in curves))
    assert made["losses"][0]["tables"] < made["losses"][0]["plan"]


def primary_by_hand(values: list[int]) -> bool:
    first, second, *rest = [*sorted(values, reverse=True), 0, 0]
    few, near = len(values) < 3, sum(rest) < 0.1 * first
    return few or near or first + second > 0.85 * (first + second + sum(rest))


def test_errors_are_those_of_the_noise(like: Path) -> None:
    """Of state totals: half of |noise| is below sigma·(2^{1/4} − 1), as P(|Z| > z) = (1 + z/sigma)^−4."""
    made = prdp.suppression(like, tables=["st_total"], draws=1000)
    of = made["errors"]["all"]
    totals = pd.read_parquet(like.parent / "microdata").pipe(lambda d: d.groupby(d.county.str[:2]).employment.sum())
    median = 1000 * (2**0.25 - 1)
    shares = median / totals.to_numpy()
    assert shares.min() < of["prdp"]["median"] < shares.max()
    assert of["multiplicative noise"]["median"] < 0.15
    assert of["suppression"] == {"withheld": 0, "median": 0, "ninety": 0, "usable": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rules", "p"], "'p' is not of the form"),
        (["--rules", "q=3"], "--rules: unknown rule q; known: p, n, k, threshold, width"),
        (["--rules", "n=2"], "--rules: n and k: give both or none"),
        (["--rules", "n=1.5,k=80"], "--rules: n and threshold: must be whole numbers"),
        (["--rules", "width=10"], "--rules: name at least one rule"),
        (["--rules", "p=0"], "--rules: p: must be above 0 and at most 100"),
        (["--tables", "st_naics9"], "st_naics9: the plan has no table of sums of employment"),
        (["--sum", "payroll"], "--sum: the plan has no table of sums of payroll"),
        (["--records", "5"], "unknown option --records"),
    ],
)
def test_wrong_calls(
    like: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main(["evaluate", "--suppression", str(like), "--out", str(tmp_path / "out"), *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_microdata_are_refused(like: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(like.read_text().replace("domain/", f"{like.parent}/domain/"))
    (tmp_path / "microdata").mkdir()
    pd.read_parquet(like.parent / "microdata").head(50).to_parquet(tmp_path / "microdata" / "a.parquet")
    with pytest.raises(PlanError, match="they do not carry the mark of prdp generate"):
        prdp.suppression(plan)
    assert main(["study", "run", "--out", str(tmp_path / "x")]) == 2
    assert main(["study", "run", "study.yaml", "--tables", "a", "--out", str(tmp_path / "x")]) == 2
    errors = capsys.readouterr().err
    assert "arguments are required: STUDY" in errors
    assert "unknown option --tables" in errors


def test_the_picture_has_both_forms() -> None:
    sizes = {"cells": 3} | {
        method: {"withheld": 0.1, "median": 0.1, "ninety": 0.2, "usable": 0.5}
        for method in ("suppression", "multiplicative noise", "prdp")
    }
    near = {"too_near_share": 0.2, "exactly_share": 0.1}
    figures = {
        "plan": "p",
        "measure": "employment",
        "errors": {"all": sizes, "sizes": [{"from": 1} | sizes, {"from": 20} | sizes]},
        "attack": {"before": near, "after": near, "multiplicative noise": near, "prdp": near},
    }
    drawn = suppression_output.board(figures)
    assert isinstance(drawn, Picture)
    assert set(drawn.files) == {".svg", ".png"}
