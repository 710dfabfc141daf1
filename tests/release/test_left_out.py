"""Releases that leave records out: tested once, refused beyond the share, told again, charged; refusals are counted."""

import json
import signal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.accounting.accountant import SHARE, LeftOutTest
from pipeline.accounting.references import Reference
from pipeline.base.errors import BudgetRefused, MicrodataError, PlanError, PrdpError
from pipeline.engines.dask import DaskEngine
from pipeline.ledger.spending import spendings
from pipeline.ledger.store import create_ledger
from pipeline.microdata.lakehouse import microdata_at
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import policy_of
from pipeline.release.request import Request, reservation_of
from pipeline.storage.paths import locate
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place, submit, submit_in_child
from tests.support.world import QUERIES, budget_file, plan, records, write_world

RELEASE, AT = "small-release", "employment=10,payroll=500"
TEST = Fraction(1, 20_000)


def with_retired(count: int, retired: int) -> pa.Table:
    """Records of which the first `retired` have a code that the domain does not list."""
    table = records(count)
    codes = ["454110"] * retired + table.column("naics").to_pylist()[retired:]
    return table.set_column(1, "naics", pa.array(codes))


def world(folder: Path, table: pa.Table, **changes: Any) -> Place:
    return Place(write_world(folder, table, **changes), folder)


def events(place: Place) -> list[str]:
    return [entry.event for entry in place.ledger().entries(RELEASE)]


def spent(place: Place) -> Fraction:
    (spending,) = spendings(place.ledger(), AT)
    return spending.total


class Blind(DaskEngine):
    """An engine that reads nothing."""

    def totals(self, *arguments: Any) -> Any:
        raise AssertionError("the microdata are read")


def test_a_release_that_leaves_too_many_out_is_refused_told_again_and_mended_under_its_name(tmp_path: Path) -> None:
    place = world(tmp_path, with_retired(3000, 2000))
    with pytest.raises(MicrodataError, match=r"about 1,997 \(noise 100\), more than 0.01 of all: run prdp check"):
        submit(place)  # 2,000, and −3 of noise
    after = events(place)
    assert after == ["reserved", "tested"]
    assert (place.state().status, place.state().charges) == ("refused", 0)
    assert spent(place) == pytest.approx(TEST)
    with pytest.raises(MicrodataError, match="about 1,997"):
        submit(place, key=None, engine=Blind(workers=1))  # other noise would say another number
    assert events(place) == after
    pq.write_table(records(3000), tmp_path / "microdata" / "part-0.parquet")
    assert submit(place).state == "settled"
    assert events(place) == [*after, "reserved", "tested", "drawn", "published", "settled"]
    loaded = load_plan(place.plan)
    stated = policy_of(loaded).loss_at(Reference.of({"employment": Fraction(10), "payroll": Fraction(500)}))
    assert spent(place) == pytest.approx(stated + TEST)
    assert place.ledger().refusals() == {"small-world": 1}
    place.ledger().verify()


def test_a_test_that_were_drawn_again_would_be_seen(tmp_path: Path) -> None:
    """The twin: fresh noise on the same counts says others; in one of 10¹⁰ runs all three are alike."""
    drawn = set()
    for number in range(3):
        place = world(tmp_path / str(number), with_retired(1500, 1400))
        with pytest.raises(MicrodataError):
            submit(place, key=None)
        (test,) = place.state().tests
        drawn.add((test.kept, test.left_out))
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("share", "passes"), [(None, False), (0.4, False), (0.6, True), (0, False)], ids=["site", "low", "high", "none"]
)
def test_a_plan_sets_its_share(tmp_path: Path, share: float | None, passes: bool) -> None:
    changes = {} if share is None else {"max_left_out": share}
    place = world(tmp_path, with_retired(8000, 4000), **changes)
    if passes:
        published = submit(place)
        manifest = json.loads((place.out / RELEASE / "release.json").read_text())
        policy = json.loads((place.out / RELEASE / published.attempt / "policy.json").read_text())
        assert policy["left_out_test"]["share"] == share
        assert sum(f"exceeded {share} of all records" in text for text in manifest["guarantee"]["assumptions"]) == 1
    else:
        with pytest.raises(MicrodataError, match="too many records were left out"):
            submit(place)
    digests = [load_plan(world(tmp_path / "other", None, **c).plan).digest for c in ({}, changes)]
    assert (digests[0] == digests[1]) == (share is None)


def test_a_trial_of_few_records_passes_whatever_is_left_out(tmp_path: Path) -> None:
    assert submit(world(tmp_path, with_retired(2, 2))).state == "settled"


@pytest.mark.parametrize(("retired", "status"), [(0, "reserved"), (2000, "refused")])
def test_killed_right_after_the_test_it_stands(tmp_path: Path, retired: int, status: str) -> None:
    place = Place(world(tmp_path, with_retired(3000, retired)).plan, tmp_path / "killed")
    _, met = submit_in_child(Place(place.plan, tmp_path / "whole"), None)
    steps = [event for event, letter in enumerate(met, start=1) if letter == "s"]
    code, _ = submit_in_child(place, steps[3])  # after `test`
    assert code == -signal.SIGKILL
    assert (events(place), place.state().status) == (["reserved", "tested"], status)
    if retired:
        with pytest.raises(MicrodataError, match="about 1,997"):
            submit(place, key=None, engine=Blind(workers=1))
    else:
        submit(place, key=None)
    assert events(place).count("tested") == 1


def test_an_input_that_changed_since_its_test_is_tested_and_charged_anew(tmp_path: Path) -> None:
    place = Place(world(tmp_path, records(3000)).plan, tmp_path / "killed")
    _, met = submit_in_child(Place(place.plan, tmp_path / "whole"), None)
    steps = [event for event, letter in enumerate(met, start=1) if letter == "s"]
    submit_in_child(place, steps[3])
    before = spent(place)
    pq.write_table(records(3001), tmp_path / "microdata" / "part-0.parquet")
    submit(place)
    anew = ["aborted", "reserved"]  # for the files that are read: the first test stays charged by itself
    assert events(place) == ["reserved", "tested", *anew, "tested", "drawn", "published", "settled"]
    assert spent(place) == pytest.approx(before + TEST)


EMPTY: dict[str, Callable[[Path], None]] = {
    "parquet": lambda folder: pq.write_table(records(0), folder / "part-0.parquet"),
    "csv": lambda folder: pc.write_csv(records(0), folder / "part-0.csv"),
}


@pytest.mark.parametrize("form", EMPTY)
def test_microdata_without_a_row_are_refused_as_a_format(tmp_path: Path, form: str) -> None:
    place = world(tmp_path, None)
    (tmp_path / "microdata").mkdir()
    EMPTY[form](tmp_path / "microdata")
    call = ["release", str(place.plan), "--ledger", str(place.ledger_path), "--out", str(place.out)]
    place.ledger()  # is made
    assert main(call) == 2
    assert events(place)[-1:] in ([], ["aborted"])
    assert place.ledger().refusals() == {}


def test_a_frame_without_a_row_is_refused_as_a_format(tmp_path: Path) -> None:
    place = world(tmp_path, None)
    place.ledger()  # is made
    loaded = prdp.load_plan(place.plan)
    with pytest.raises(PlanError, match="hold no record"):
        loaded.release(records(0).to_pandas(), ledger=place.ledger_path, out=tmp_path / "out")
    assert place.state().refunded


@PYSPARKS_OWN
def test_spark_counts_what_is_left_out(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(MicrodataError, match="about 1,997"):
        submit(world(tmp_path / "much", with_retired(3000, 2000)), engine=spark)
    empty = world(tmp_path / "empty", records(0))
    with pytest.raises(PlanError, match="hold no record"):
        submit(empty, engine=spark)
    assert empty.state().status == "aborted"


def bad(rule: str) -> pa.Table:
    table = records(20)
    if rule == "duplicates":
        return table.set_column(0, "establishment_id", pa.array(["E"] * 20))
    return table.set_column(1, "naics", pa.array(["x"] * 20))


@pytest.mark.parametrize(("rule", "dataset"), [("records", {}), ("duplicates", {"duplicates": "reject"})])
def test_refusals_because_of_records_are_counted_and_limited(
    tmp_path: Path, rule: str, dataset: dict[str, Any]
) -> None:
    place = world(tmp_path, bad(rule), dataset=dataset)
    store = prdp.Ledger(place.ledger(), False)
    store.register("small-world", budget_file(tmp_path, dataset=dataset, refusals=2))
    for _ in range(2):
        with pytest.raises(MicrodataError, match="break the contract"):
            submit(place)
    assert place.state().status == "refused"
    refusal = "2 of its releases were refused because of their records, 2 may be: have an officer state its budget anew"
    with pytest.raises(BudgetRefused, match=refusal):
        submit(place, engine=Blind(workers=1))
    pq.write_table(records(20), tmp_path / "microdata" / "part-0.parquet")
    with pytest.raises(BudgetRefused, match="2 may be"):
        submit(place)
    assert spendings(place.ledger(), AT)[0].total == 0
    store.raise_limits("small-world", budget_file(tmp_path, dataset=dataset, refusals=3), "files are mended")
    assert submit(place).state == "settled"
    place.ledger().verify()


def test_ten_refusals_of_a_dataset_that_is_not_registered(tmp_path: Path) -> None:
    place = world(tmp_path, bad("records"))
    for _ in range(10):
        with pytest.raises(MicrodataError):
            submit(place)
    with pytest.raises(BudgetRefused, match="10 may be: have an officer register it"):
        submit(place)
    shown = place.ledger().refusals()
    assert shown == {"small-world": 10}


def test_a_refusal_by_the_budget_is_not_counted(tmp_path: Path) -> None:
    place = world(tmp_path, records(20), budget=[{"at": {"employment": 10, "payroll": 500}, "rho": 1e-5}])
    with pytest.raises(BudgetRefused, match="refused by the budget"):
        submit(place)
    assert place.ledger().refusals() == {}


def test_a_mended_plan_may_take_other_columns_but_not_other_records(tmp_path: Path) -> None:
    table = with_retired(3000, 2000)
    table = table.append_column("industry", records(3000).column("naics"))
    place = world(tmp_path, table)
    with pytest.raises(MicrodataError):
        submit(place)
    write_world(tmp_path, None, dataset={"duplicates": "reject", "keys": {"naics": "industry", "county": "county"}})
    with pytest.raises(prdp.StateError, match="duplicates is trust in the ledger, but reject in the plan"):
        submit(place)
    write_world(tmp_path, None, dataset={"keys": {"naics": "industry", "county": "county"}})
    assert submit(place).state == "settled"


def test_ledger_show_tells_tests_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = world(tmp_path, with_retired(3000, 2000))
    with pytest.raises(MicrodataError):
        submit(place)
    show = ["ledger", "show", "--ledger", str(place.ledger_path)]
    assert main(show) == 0
    assert "small-world: 1 of 10 refusals because of records" in capsys.readouterr().out
    assert main([*show, RELEASE]) == 0
    assert "test of records left out: refused, 1,997 left out and 1,006 kept, with noise" in capsys.readouterr().out
    assert main([*show, "--json"]) == 0
    release, refusals = (each for each in json.loads(capsys.readouterr().out) if each["state"] != "spending")
    found = {"kept": 1006, "left_out": 1997, "passed": False, "share": 0.01, "sigma": 100, "multiple": 5.3}
    assert release["tests"] == [found]
    assert refusals == {"dataset": "small-world", "state": "refusals", "counted": 1, "allowed": 10}
    assert main(["ledger", "export", "--ledger", str(place.ledger_path)]) == 0
    tested = [json.loads(line) for line in capsys.readouterr().out.splitlines()][-1]
    assert (tested["event"], "pin" in tested["facts"], "pin" in tested["withheld"]) == ("tested", False, True)


def test_the_site_states_the_share_of_plans_that_state_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text("max_left_out: 0.25\n")
    monkeypatch.setenv("PRDP_SITE", str(tmp_path / "site.yaml"))
    for share, changes in ((0.25, {}), (0.5, {"max_left_out": 0.5})):
        path = write_world(tmp_path, None, **changes)
        assert main(["explain", str(path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["left_out_test"]["share"] == share
        assert [loss["rho"] for loss in told["left_out_test"]["losses"]] == [pytest.approx(5e-5)]
    assert "left_out_test" not in plan()
    assert main(["explain", str(write_world(tmp_path, None, max_left_out=1)), "--json"]) == 2
    assert "max_left_out: must be at least 0 and below 1" in capsys.readouterr().err


PURE_QUERIES = [
    QUERIES[1],
    {**QUERIES[2], "mechanism": {"kind": "log", "a": 50, "sigma": 0.5, "noise": "laplace", "estimator": "median"}},
]


def test_a_release_of_pure_queries_states_a_pure_loss_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = world(tmp_path, records(300), queries=PURE_QUERIES)
    assert main(["explain", str(place.plan), "--at", AT, "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    (total,) = explained["total"]
    parts = [query["losses"][0]["epsilon"] for query in explained["queries"]]
    assert explained["left_out_test"]["losses"][0]["epsilon"] == 0.01
    assert total["epsilon"] == pytest.approx(sum(parts) + 0.01, rel=1e-12)
    published = submit(place)
    policy = json.loads((place.out / RELEASE / published.attempt / "policy.json").read_text())
    assert policy["left_out_test"]["policy"]["epsilon"] == "Δ/σ"
    assert [at["total"]["epsilon"] for at in policy["references"]] == [total["epsilon"]]
    guarantee = json.loads((place.out / RELEASE / "release.json").read_text())["guarantee"]
    assert guarantee == policy["guarantee"]
    assert "(per-record pure differential privacy)" in guarantee["words"]
    assert "D_∞" in guarantee["formula"]
    assert sum("discrete Laplace noise of scale 100" in text for text in guarantee["assumptions"]) == 1
    spending = spendings(place.ledger(), AT)[0].to_json()
    assert spending["epsilon"] == spending["releases"][0]["epsilon"] == total["epsilon"]
    assert spending["left_out_tests"] == explained["left_out_test"]["losses"][0]["rho"] < TEST
    assert main(["ledger", "show", "--at", AT, "--ledger", str(place.ledger_path)]) == 0
    assert "of it 0.0000499996 by tests of records left out; pure epsilon " in capsys.readouterr().out


def gaussian_test(cls: type[LeftOutTest], queries: Any, share: Fraction = SHARE) -> LeftOutTest:
    """The test of older versions, whatever the queries."""
    return cls(share)


def killed(*arguments: Any) -> Any:
    raise PrdpError("killed")


def test_what_older_versions_tested_with_gaussian_noise_stays_charged_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a version left a refusal by its test, then a complete draw that was not published."""
    place = world(tmp_path, with_retired(3000, 2000), queries=PURE_QUERIES)
    with monkeypatch.context() as older:
        older.setattr(LeftOutTest, "beside", classmethod(gaussian_test))
        with pytest.raises(MicrodataError, match="about 1,997"):
            submit(place)
        assert spent(place) == TEST
        pq.write_table(records(3000), tmp_path / "microdata" / "part-0.parquet")
        older.setattr("pipeline.release.steps._hold_or_publish", killed)
        with pytest.raises(PrdpError, match="killed"):
            submit(place)
        charged = spent(place)
    assert spent(place) == charged
    assert submit(place, key=None).state == "settled"  # published as it was drawn, by this version
    assert events(place) == ["reserved", "tested", "reserved", "tested", "drawn", "published", "settled"]
    assert spent(place) == charged
    assert [spendings(place.ledger(), AT)[0].to_json()[name] for name in ("epsilon", "left_out_tests")] == [None, 1e-4]
    guarantee = json.loads((place.out / RELEASE / "release.json").read_text())["guarantee"]
    assert sum("discrete Gaussian noise of scale 100" in text for text in guarantee["assumptions"]) == 1
    assert "pure" not in guarantee["words"]
    place.ledger().verify()


def fitting(folder: Path, mechanism: dict[str, Any], **changes: Any) -> int:
    """How many of four releases, of a plan as `prdp calibrate` writes it, a limit of 2 lets be reserved."""
    at = {"at": {"employment": 10}, "rho": 2}
    queries = [{**QUERIES[1], "mechanism": mechanism}]
    path = write_world(folder, records(20), queries=queries, budget=[at], **changes)
    assert main(["calibrate", str(path), "--out", str(folder / "written.yaml")]) == 0
    ledger = create_ledger(str(folder / "state" / "ledger.sqlite"))
    for number in range(4):
        written = yaml.safe_load((folder / "written.yaml").read_text())
        (folder / "next.yaml").write_text(yaml.safe_dump(written | {"release": f"year-{number}"}))
        request = Request(
            plan=load_plan(folder / "next.yaml"),
            microdata=microdata_at(locate(folder / "microdata")),
            out=locate(folder / "out"),
            ledger=ledger,
        )
        try:
            ledger.reserve(reservation_of(request))
        except BudgetRefused:
            return number
    return 4


DRAFTS = [
    {"limits": [{"at": {"employment": 10}, "rho": 0.5}]},
    {"limits": [{"at": {"employment": 10}, "rho": 2}], "years": 4},
]


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_four_releases_of_a_half_fit_a_limit_of_two_where_room_is_left_for_their_tests(
    tmp_path: Path, kind: str
) -> None:
    for number, draft in enumerate(DRAFTS):
        assert fitting(tmp_path / str(number), {"kind": kind, "calibrate": "plan"}, calibrate=draft) == 4
    half = {"loss": 0.5, "at": {"employment": 10}}
    assert fitting(tmp_path / "with", {"kind": kind, "calibrate": half | {"with_test": True}}) == 4
    assert fitting(tmp_path / "alone", {"kind": kind, "calibrate": half}) == 3  # the twin: of the table alone
