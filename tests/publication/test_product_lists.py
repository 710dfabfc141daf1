"""Public lists beside figures: per head, footnotes by rule, and changes between releases whose code lists differ."""

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.publication.product import product_tables
from pipeline.publication.product.derived_columns import Part, quotient_of
from pipeline.publication.product.product_tables import ShownTables
from prdp import PlanError
from tests.support.published import ATTEMPT, Table, publish
from udfs.estimates.intervals import Law, Statistics, whole_range

STATES, SECTORS = ("01", "02", "09"), ("11", "21")
JOBS = np.array([1000.0, 40, 600, 1, 3000, 200])
POPULATION = "state;FIPS;POP\nAlabama;01;2000\nAlaska;02;500.5\n"
PRODUCT: dict[str, Any] = {
    "product": "heads",
    "title": "Jobs by head",
    "levels": {"state": {"meaning": "State"}, "sector": {"meaning": "Sector"}, "nation": {"meaning": "Nation"}},
    "measures": {"jobs": {"meaning": "Jobs", "unit": "jobs"}},
    "lists": {
        "people": {
            "meaning": "Inhabitants of 2024",
            "unit": "inhabitants",
            "file": "people.csv",
            "number": "POP",
            "codes": {"state": "FIPS"},
        }
    },
    "derived": {
        "per_head": {"meaning": "Jobs", "unit": "jobs per 1,000", "ratio": "jobs", "per": "people", "times": 1000},
        "growth": {"meaning": "Change", "unit": "%", "change": "jobs", "relative": True, "times": 100, "decimals": 2},
    },
    "flags": [{"flag": "a", "under": 2, "meaning": "good"}, {"flag": "b", "meaning": "others"}],
    "footnotes": [
        {"note": "w", "text": "Not told from nothing.", "withheld": True},
        {"note": "n", "text": "No figure for want of a number or an earlier code.", "missing": True},
        {"note": "r", "text": "Wide.", "wider_than": 40},
        {"note": "e", "text": "Poor.", "error_from": 12.5, "of": ["jobs", "growth"]},
        {"note": "1", "text": "Mines alone.", "codes": {"sector": ["21"], "state": "states.csv"}},
        {"note": "t", "text": "A total.", "levels": ["nation"]},
    ],
    "layouts": [
        {
            "file": "heads.csv",
            "about": "Jobs",
            "rows": [{"by": ["state", "sector"], "values": "{measure}"}],
            "order": ["SECTOR"],
            "columns": [
                {"name": "AREA", "meaning": "Area", "codes": {"state": {}, "nation": {}}},
                {"name": "SECTOR", "meaning": "Sector", "codes": {"sector": {}}, "otherwise": "all"},
                {"name": "JOBS", "meaning": "Jobs", "value": "jobs"},
                {"name": "JOBS_N", "meaning": "Notes", "notes": "jobs"},
                {"name": "PEOPLE", "meaning": "Inhabitants", "value": "people"},
                {"name": "HEAD", "meaning": "By head", "value": "per_head"},
                {"name": "HEAD_F", "meaning": "Its flag", "flag": "per_head"},
                {"name": "HEAD_N", "meaning": "Notes", "notes": "per_head"},
            ],
            "withhold": {"interval_holds_zero": True},
            "ranges": True,
        }
    ],
}
LAYOUT = PRODUCT["layouts"][0]
CHANGES = LAYOUT | {
    "columns": [
        *LAYOUT["columns"][:2],
        {"name": "GROWTH", "meaning": "Change", "value": "growth"},
        {"name": "GROWTH_F", "meaning": "Flag", "flag": "growth"},
        {"name": "GROWTH_N", "meaning": "Notes", "notes": "growth"},
    ]
}
FOLLOW = {"state": {"file": "follow.csv"}}


def table(values: Any, error: float = 20.0, states: tuple[str, ...] = STATES, kind: str = "gaussian") -> Table:
    values = np.asarray(values, dtype=np.float64)
    return Table({"state": states, "sector": SECTORS}, values, np.full(len(values), error), kind)


def made(folder: Path, since: Table | None = None, files: Mapping[str, str] | None = None, **changes: Any) -> Path:
    """Make the product of one release, with its public files, and an earlier one where there is one."""
    folder.mkdir(exist_ok=True)
    release = publish(folder, {"jobs": table(JOBS)})
    for name, text in ({"people.csv": POPULATION, "states.csv": "code\n02\n"} | dict(files or {})).items():
        (folder / name).write_text(text)
    (folder / "p.yaml").write_text(yaml.safe_dump(PRODUCT | changes, sort_keys=False))
    earlier = {}
    if since is not None:
        before = publish(folder / "before", {"jobs": since}, "earlier")
        path = before / "release.json"
        path.write_text(path.read_text().replace(ATTEMPT, "f" * 16))
        (before / ATTEMPT).rename(before / ("f" * 16))
        earlier = {"since": before}
    prdp.product(release, folder / "out", product=folder / "p.yaml", **earlier)
    return folder / "out" / "layouts"


def rows(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with path.open(newline="") as file:
        return {(row["AREA"], row["SECTOR"]): row for row in csv.DictReader(file)}


def test_figures_per_head_have_their_own_interval_over_the_public_number(tmp_path: Path) -> None:
    folder = made(tmp_path)
    read, ends = rows(folder / "heads.csv"), rows(folder / "heads_ranges.csv")
    for (state, sector), jobs in zip([(a, s) for a in STATES for s in SECTORS], JOBS, strict=True):
        people = {"01": 2000, "02": 500.5}.get(state)
        row = read[state, sector]
        assert row["PEOPLE"] == ("" if people is None else f"{people:g}")
        if people is None or jobs - 40 <= 0:  # no number, or withheld
            assert (row["HEAD"], row["HEAD_F"]) == ("", "S" if people else "")
            continue
        assert float(row["HEAD"]) == pytest.approx(1000 * jobs / people, abs=0.051)
        assert float(ends[state, sector]["HEAD_low"]) == math.floor((jobs - 40) / people * 10_000) / 10
        assert float(ends[state, sector]["HEAD_high"]) == math.ceil((jobs + 40) / people * 10_000) / 10
        assert row["HEAD_F"] == ("a" if 100 * 20 / jobs < 2 else "b")
    assert "PEOPLE_low" not in next(iter(ends.values()))  # public numbers have no error
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "- people: it has no number for state 09\n" in readme
    assert "- Inhabitants of 2024 (inhabitants): people.csv, POP" in readme
    manifest = json.loads((tmp_path / "out" / "product.json").read_text())
    assert list(manifest["lists"]) == ["people.csv"]
    assert prdp.verify(tmp_path / "out").files == len(manifest["files"])


def test_a_public_number_alone_keeps_no_row(tmp_path: Path) -> None:
    read = rows(made(tmp_path, layouts=[LAYOUT | {"leave_out_empty": True}]) / "heads.csv")
    assert {*read} == {("01", "11"), ("02", "11"), ("09", "11"), ("09", "21")}  # of 40 and 1, the errors are 20


def test_numbers_of_coarser_levels_are_sums_of_the_list(tmp_path: Path) -> None:
    nation = Table({"nation": ("US",)}, np.array([4700.0]), np.array([9.0]))
    release = publish(tmp_path, {"jobs": table(JOBS), "us": nation})
    people = PRODUCT["lists"]["people"] | {"codes": {"state": "FIPS", "nation": "N"}}
    both = [{"by": ["nation"], "values": {"jobs": "us"}}, {"by": ["state", "sector"], "values": {"jobs": "jobs"}}]
    spec = PRODUCT | {"lists": {"people": people}, "layouts": [LAYOUT | {"rows": both}]}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    (tmp_path / "people.csv").write_text("FIPS,POP,N\n01,2000,US\n02,500.5,US\n72,9,\n09,1000,US\n")
    (tmp_path / "states.csv").write_text("code\n02\n")
    prdp.product(release, tmp_path / "out", product=tmp_path / "p.yaml")
    read = rows(tmp_path / "out" / "layouts" / "heads.csv")
    assert read["US", "all"]["PEOPLE"] == "3500.5"  # what has no nation counts in none
    assert read["US", "all"]["HEAD"] == f"{4700 / 3.5005:.1f}"
    assert read["US", "all"]["JOBS_N"] == "t"
    assert read["09", "21"]["HEAD"] == "200"


def test_footnotes_follow_their_rules(tmp_path: Path) -> None:
    folder = made(tmp_path)
    read, ends = rows(folder / "heads.csv"), rows(folder / "heads_ranges.csv")
    for key, jobs in zip([(a, s) for a in STATES for s in SECTORS], JOBS, strict=True):
        low, high = (int(ends[key][f"JOBS_{end}"]) for end in ("low", "high"))
        notes = {
            "w": jobs - 40 <= 0,
            "r": (high - low) / jobs >= 0.4,
            "e": 20 / jobs >= 0.125,
            "1": key == ("02", "21"),
        }
        assert read[key]["JOBS_N"] == " ".join(note for note, holds in notes.items() if holds)
        per_head = {
            "w": notes["w"] and key[0] != "09",
            "n": key[0] == "09",
            "r": (high - low) / jobs >= 0.4 and key[0] != "09",
            "1": notes["1"],
        }
        assert read[key]["HEAD_N"] == " ".join(note for note, holds in per_head.items() if holds)
    for name in ("README.md", "dictionary.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "| w | Not told from nothing. | all with a column of notes | withheld |" in text
        assert "| 1 | Mines alone. | all with a column of notes | sector is 21, state is 02 |" in text
    stored = pd.read_parquet(folder / "heads.parquet")
    assert stored.JOBS_N.tolist() == [row["JOBS_N"] for row in read.values()]


SINCE = ("01", "02", "51515", "09001")


def test_codes_of_both_releases_are_compared_and_others_named(tmp_path: Path) -> None:
    before = table([800, 50, 500, 60, 10, 20, 5, 6], states=SINCE)
    folder = made(tmp_path, before, layouts=[CHANGES])
    read = rows(folder / "heads.csv")
    assert read["01", "11"]["GROWTH"] == "25"
    assert read["02", "11"]["GROWTH"] == "20"
    assert (read["09", "11"]["GROWTH"], read["09", "11"]["GROWTH_F"]) == ("", "")
    assert [row["GROWTH_N"].split() for row in read.values()].count(["n"]) == 2 == len(SECTORS)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "- state: new since the earlier releases, 1 in all: 09\n" in readme
    assert "- state: gone since the earlier releases, 2 in all: 09001, 51515\n" in readme


@pytest.mark.parametrize("side", ["area", "inner"])
def test_codes_that_became_one_are_added_up_with_their_errors(tmp_path: Path, side: str) -> None:
    """Three earlier codes became 02 and one 09, as the area of rows or within each area."""
    states = ("01", "02", "02a", "02b", "9")
    layout = CHANGES if side == "area" else CHANGES | {"rows": [{"by": ["sector", "state"], "values": "{measure}"}]}
    levels = PRODUCT["levels"]
    follow = "old,new\n02a,02\n9,09\n02b,02\n77,78\n"  # a line of neither release says nothing here
    before = table([800, 50, 400, 60, 100, 20, 100, 6, 2000, 100], states=states)
    changes = {"layouts": [layout], "concordances": FOLLOW, "levels": levels}
    folder = made(tmp_path, before, {"follow.csv": follow}, **changes)
    read, ends = rows(folder / "heads.csv"), rows(folder / "heads_ranges.csv")
    assert {key: row["GROWTH"] for key, row in read.items() if key[1] == "11"} == {
        ("01", "11"): "25",
        ("02", "11"): "0",  # 600 of 400 + 100 + 100
        ("09", "11"): "50",
    }
    # Fieller's ends at independent errors of 20 and 20·√3; the twin of one error alone has other ends
    k = math.sqrt(4 / (9 * 0.05)) + math.sqrt((1 / 20) ** 2 + (3 / (20 * 3**0.5)) ** 2) / 2
    for variance, right in ((1200.0, True), (400.0, False)):
        roots = np.sort(np.roots([600**2 - k**2 * variance, -2 * 600**2, 600**2 - k**2 * 400]).real)
        row = ends["02", "11"]
        shown = [float(row[f"GROWTH_{end}"]) for end in ("low", "high")]
        near = np.abs(shown - 100 * (roots - 1)) < 0.02
        assert near.all() == right
    assert "follow.csv says which codes follow earlier ones" in (tmp_path / "out" / "README.md").read_text()


def test_sums_whose_errors_nobody_knows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, follow = ("01", "02", "9", "09"), {"follow.csv": "old,new\n9,09\n"}
    changes: dict[str, Any] = {"layouts": [CHANGES], "concordances": FOLLOW}
    with pytest.raises(PlanError, match="adds up codes of the table jobs, whose noise is not additive"):
        made(tmp_path / "a", table(range(100, 108), states=states, kind="log"), follow, **changes)
    read = ShownTables.of

    def of_owners(*folders: Any) -> ShownTables:
        shown = read(*folders)
        tables = {name: product_tables.replace(each, adds_up=False) for name, each in shown.tables.items()}
        return product_tables.replace(shown, tables=tables)

    monkeypatch.setattr(ShownTables, "of", of_owners)
    with pytest.raises(PlanError, match="whose cells each count an owner"):
        made(tmp_path / "b", table(range(100, 108), states=states), follow, **changes)
    # one that became one is no sum: it is compared
    made(tmp_path / "c", table(range(100, 106), states=("01", "02", "9")), follow, **changes)


FILES = {
    "people.csv": [
        ("FIPS,POP\n01,5\n01,6\n", r'people.csv: line 3: code "01" stands twice'),
        ("FIPS,POP\n01,0\n", r"people.csv: line 2: POP must be a number above 0"),
        ("FIPS,POP\n01,5\n02,1e3\n", r"people.csv: line 3: POP must be a number above 0"),
        ("FIPS,POP\n01,nan\n", r"people.csv: line 2: POP must be a number above 0"),
        ("FIPS,POP\n,5\n", r"people.csv: line 2: there is no code"),
        ("FIPS,POP\n01,5,6\n", r"people.csv: line 2: 3 columns, but the header has 2"),
        ("FIPS,PEOPLE\n01,5\n", r"people.csv: line 1: there is no column POP; its columns are FIPS, PEOPLE"),
        ("FIPS,POP,POP\n01,5,5\n", r"people.csv: line 1: there are two columns POP"),
        ("FIPS,POP\n", r"people.csv: holds no code"),
        ("FIPS,POP\n\xe9\x00,5\n", r"people.csv: line 2"),
        (None, r"p.yaml: line \d+: lists.people.file: .*people.csv: no such file"),
    ],
    "states.csv": [
        ("code\n01\n01\n", r'states.csv: line 3: code "01" stands twice'),
        ("state\n01\n", r"states.csv: line 1: there is no column code"),
        (None, r"p.yaml: line \d+: footnotes\[4\].codes: .*states.csv: no such file"),
    ],
    "follow.csv": [
        ("old,new\n9,09\n9,01\n", r'follow.csv: line 3: "9" stands in line 2 too: totals of an old code cannot be div'),
        ("old,new\n9,09\n9,09\n", r'follow.csv: line 3: "9" stands in line 2 too$'),
        ("old,new\n,09\n", r"follow.csv: line 2: there is no code in the column old"),
        ("from,to\n9,09\n", r"follow.csv: line 1: there is no column old; its columns are from, to"),
        ("old,new\n9,099\n", r"follow.csv: line 2: the releases have no 099, so that 099 would lack a part"),
        ("old,new\n9,09\n8,09\n", r"follow.csv: line 3: earlier releases have no 8, so that 09 would lack a part"),
        (None, r"p.yaml: line \d+: concordances.state.file: .*follow.csv: no such file"),
    ],
}


@pytest.mark.parametrize(
    ("file", "text", "message"), [(file, *each) for file, cases in FILES.items() for each in cases]
)
def test_faults_of_public_files_name_them_and_their_line(
    tmp_path: Path, file: str, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table(range(100, 106), states=("01", "02", "9"))
    changes: dict[str, Any] = {"layouts": [LAYOUT, CHANGES | {"file": "changes.csv"}], "concordances": FOLLOW}
    made(tmp_path, before, {"follow.csv": "old,new\n9,09\n"}, **changes)
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text, encoding="latin-1")
    call = [
        "product",
        tmp_path / "made-up",
        "--since",
        tmp_path / "before" / "earlier",
        "--product",
        tmp_path / "p.yaml",
    ]
    assert main([*map(str, call), "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err.strip()
    with pytest.raises(AssertionError, match=message):  # the message, as `match` searches it
        raise AssertionError(error)
    assert not list((tmp_path / "none").glob("*"))


PEOPLE, NOTE = PRODUCT["lists"]["people"], PRODUCT["footnotes"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lists": {"people": PEOPLE | {"codes": {"zip": "Z"}}}}, r"line \d+: lists.people.codes.zip: is no level"),
        ({"lists": {"people": PEOPLE | {"codes": {}}}}, r"line \d+: lists.people.codes"),
        ({"lists": {"jobs": PEOPLE}}, r"line \d+: lists.jobs: a measure or a level has this name"),
        ({"lists": {"people": PEOPLE | {"columns": "x"}}}, r"line \d+: lists.people.columns: unknown key"),
        (
            {"derived": {"per_head": PRODUCT["derived"]["per_head"] | {"per": ["people", "jobs"]}}},
            r"line \d+: derived.per_head.per: the public list people must stand alone",
        ),
        (
            {"derived": {"per_head": PRODUCT["derived"]["per_head"] | {"ratio": "people"}}},
            r"line \d+: derived.per_head: people: must be one of jobs",
        ),
        (
            {"layouts": [LAYOUT | {"rows": [{"by": ["sector"], "values": "{measure}"}]}]},
            r"heads.csv: column \w+: the public list people has no codes of sector: name their column in lists.people",
        ),
        (
            {"layouts": [LAYOUT | {"columns": [*LAYOUT["columns"], {"name": "X", "meaning": "X", "flag": "people"}]}]},
            r"columns\[8\].flag: people is a public list, whose numbers have no error",
        ),
        (
            {"layouts": [LAYOUT | {"columns": [LAYOUT["columns"][0], LAYOUT["columns"][4]], "order": []}]},
            r"columns: must show a measure, whose table tells the rows",
        ),
        ({"footnotes": []}, r"columns\[3\].notes: the product has no footnotes"),
        ({"footnotes": [{"note": "x", "text": "x"}]}, r"line \d+: footnotes\[0\]: a condition is needed"),
        ({"footnotes": [NOTE, NOTE]}, r"line \d+: footnotes\[1\].note: another footnote has this name"),
        ({"footnotes": [NOTE | {"note": "a b"}]}, r"line \d+: footnotes\[0\].note: must have no space"),
        ({"footnotes": [NOTE | {"of": ["ap"]}]}, r"line \d+: footnotes\[0\].of\[0\]: must be one of jobs, per_head"),
        ({"footnotes": [NOTE | {"levels": ["zip"]}]}, r"footnotes\[0\].levels\[0\]: must be one of state, sector"),
        ({"footnotes": [NOTE | {"codes": {"zip": ["1"]}}]}, r"footnotes\[0\].codes.zip: is no level"),
        ({"concordances": {"zip": {"file": "follow.csv"}}}, r"line \d+: concordances.zip: is no level"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        made(tmp_path, **changes)


# Coverage, by simulation: how often ranges hold true figures. 20,000 draws: 5.5 % is 3.2 deviations above 5 %.

DRAWS = 20_000


def stated(true: float, sd: float, rng: np.random.Generator, draw: Callable[..., Any]) -> Statistics:
    value = true + draw(rng, sd)
    return Statistics(value, np.full(DRAWS, sd), value - 1.96 * sd, value + 1.96 * sd)


def test_figures_per_head_hold_as_often_as_their_totals() -> None:
    rng = np.random.default_rng(21)
    of = stated(700.0, 40.0, rng, lambda rng, sd: rng.normal(0, sd, DRAWS))
    people, others = (Part.public("people", np.full(DRAWS, number)) for number in (350.0, 360.0))
    made_of = quotient_of([Part("jobs", None, Law.SYMMETRIC, 1.0, 0.95, of)], [people])
    missed = float(((made_of.lower > 2) | (made_of.upper < 2)).mean())
    assert 0.045 < missed < 0.055  # the total's own interval over the number, no wider
    wrong = quotient_of([Part("jobs", None, Law.SYMMETRIC, 1.0, 0.95, of)], [others])  # the twin: another area's number
    assert float(((wrong.lower > 2) | (wrong.upper < 2)).mean()) > 0.055
    # two months of one reconciled group, whose errors may be one and the same
    months = [Part(name, 1, Law.GAUSSIAN, 0.0, 0.95, of) for name in ("m1", "m2")]
    both = quotient_of(months, [people])
    assert float(((both.lower > 4) | (both.upper < 4)).mean()) < 0.055
    apart = [Part(name, None, Law.GAUSSIAN, 0.0, 0.95, of) for name in ("m1", "m2")]
    twin = quotient_of(apart, [people])  # as if their errors were independent
    assert float(((twin.lower > 4) | (twin.upper < 4)).mean()) > 0.1


def test_whole_ranges_hold_whole_totals_as_often() -> None:
    rng = np.random.default_rng(22)
    for true in (0.0, 1.0, 30.0):
        of = stated(true, 1.7, rng, lambda rng, sd: rng.normal(0, sd, DRAWS))
        low, high = whole_range(of.lower, of.upper, 1.0)
        assert float(((true < low) | (true > high)).mean()) == float(((true < of.lower) | (true > of.upper)).mean())
        assert (high - low < of.upper - of.lower).mean() > 0.9
        cents, _ = whole_range(of.lower - 0.5, of.upper, 0.01)  # totals in cents are rounded outwards
        assert (cents <= of.lower - 0.5).all()
    low, high = whole_range(np.array([2.0 + 1e-13, 2.3, -np.inf]), np.array([3.0 - 1e-13, 2.6, np.inf]), 1.0)
    assert low.tolist() == [2.0, 2.0, -np.inf]  # the error of doubles; an interval without a whole number
    assert high.tolist() == [3.0, 3.0, np.inf]
    twin = np.ceil(of.lower + 0.5)  # a twin that rounds too far inwards misses too often
    assert float((true < twin).mean()) > 0.03
