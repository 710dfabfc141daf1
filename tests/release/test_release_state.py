"""What a run makes of what earlier runs, other builds and other plans left (docs/architecture.md, rules 2, 6 and 9)."""

import errno
import os
import signal
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from dask.base import tokenize

from pipeline.base.errors import StateError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.tasks import Failure, SumTask
from pipeline.engines.totals import layout_of
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.plan.load import load_plan
from pipeline.publication.manifest import verify_release
from pipeline.release.attempts import give_up
from pipeline.release.officers import approve
from pipeline.release.request import reservation_of
from pipeline.release.steps import Job, run
from pipeline.storage.local import LocalPath
from pipeline.storage.paths import locate
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import MANIFEST, Staging
from tests.support.ledgers import UNIT, staged_files
from tests.support.logs import log_for
from tests.support.submit import Place, submit, submit_at_once, submit_in_child
from tests.support.world import QUERIES, records, write_world

RELEASE = "small-release"


def staged(place: Place) -> list[Path]:
    return staged_files(place.ledger().staging_root)


def reserve_by_another_build(place: Place) -> None:
    plan = load_plan(place.plan)
    job = Job(
        plan=plan,
        microdata=plan.dataset.path,
        out=locate(place.out),
        ledger=place.ledger(),
        engine=DaskEngine(workers=1),
    )
    place.ledger().reserve(replace(reservation_of(job), code="sha256:another build"))


def test_what_another_build_reserved_is_reserved_anew(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(20)), tmp_path)
    reserve_by_another_build(place)
    submit(place)
    assert place.state().reservation["code"] != "sha256:another build"
    assert place.state().charges == 1


def test_what_another_build_drew_is_not_drawn_again(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(20)), tmp_path)
    reserve_by_another_build(place)
    ledger = place.ledger()
    ledger.test(RELEASE, "sha256:pin", kept=20, left_out=0)
    ledger.destroyed(RELEASE, ledger.draw(RELEASE, "sha256:pin"), "killed", exposed=False)
    with pytest.raises(StateError, match="another build"):
        submit(place)


def killed_before_publishing(folder: Path) -> Place:
    plan = write_world(folder, records(20))
    place, whole = Place(plan, folder / "killed"), Place(plan, folder / "whole")
    _, events = submit_in_child(whole, None)
    steps = [event for event, letter in enumerate(events, start=1) if letter == "s"]
    code, _ = submit_in_child(place, steps[6])
    assert code == -signal.SIGKILL
    assert staged(place)
    return place


def test_giving_up_destroys_what_is_staged_and_keeps_the_charge(tmp_path: Path) -> None:
    place = killed_before_publishing(tmp_path)
    sealed = Staging(locate(place.ledger().staging_root), RELEASE, "totals-of-a-killed-run")
    sealed.create()
    sealed.write_text("sums-0", "sealed")
    give_up(place.ledger(), RELEASE)
    assert not staged(place)
    assert (place.state().status, place.state().charges) == ("aborted", 1)
    with pytest.raises(StateError, match="aborted after a draw"):
        submit(place)


def test_a_draw_of_an_earlier_run_is_told(tmp_path: Path) -> None:
    outcome = submit(killed_before_publishing(tmp_path), key=None)
    assert (outcome.state, outcome.already) == ("settled", False)
    assert outcome.not_done == (
        "the microdata were not read again: an earlier run drew and staged these tables, which stand",
    )


def test_rests_of_destroyed_attempts_are_swept(tmp_path: Path) -> None:
    place = killed_before_publishing(tmp_path)
    reserved = place.ledger().staging_root / RELEASE / "0123456789abcdef"
    reserved.mkdir(mode=0o700)
    (reserved / "report.html").write_text("noise that was drawn and destroyed")
    submit(place)
    assert not staged(place)


def test_a_disk_that_is_full_for_a_task_of_the_noise_is_the_stagings_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(write_world(tmp_path, records(50)), tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/path")

    monkeypatch.setattr("pipeline.engines.tasks.write_block", full)
    with pytest.raises(StateError, match=r"writing to staging failed \(No space left on device\): make room") as raised:
        submit(place)
    assert "/a/path" not in str(raised.value)
    assert Failure.in_text(Failure.of(raised.value).line()).error().args == raised.value.args  # as it crosses Spark
    assert type(Failure.of(raised.value).error()) is StateError
    monkeypatch.undo()
    assert not staged(place)
    submit(place)
    state = place.ledger().state(RELEASE)
    assert (state.status, state.draws, state.charges) == ("settled", 2, 1)


def test_a_disk_that_is_full_for_sealed_sums_is_the_stagings_fault(tmp_path: Path) -> None:
    (tmp_path / "sums-0").mkdir()
    with pytest.raises(StateError, match=r"writing to staging failed \(Is a directory\)"):
        Seal.fresh().write(LocalPath(tmp_path / "sums-0"), {"total": np.zeros(2, np.int64)})


def job_of_mine(folder: Path) -> tuple[Job, Ledger]:
    """A release to the ledger `mine`, and another ledger that stages at the same place."""
    plan = load_plan(write_world(folder / "world", records(50)))
    mine, theirs = (create_ledger(str(folder / name / "ledger.sqlite")) for name in ("mine", "theirs"))
    places = {"microdata": locate(plan.path.parent / "microdata"), "out": locate(folder / "my-out")}
    engine, staging = DaskEngine(workers=1), locate(folder / "staging")
    return Job(plan=plan, ledger=mine, engine=engine, staging=staging, **places), theirs


@pytest.mark.parametrize("marked", [True, False])
def test_a_ledger_that_stages_the_same_release_in_the_same_place_breaks_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    if not marked:  # the broken twin, and a store without conditional puts
        monkeypatch.setattr("pipeline.release.attempts.is_own", lambda ledger, root: True)
    monkeypatch.setattr("pipeline.release.publish.CELLS_AT_ONCE", 1)
    job, theirs = job_of_mine(tmp_path)
    plan, mine = job.plan, job.ledger

    def meanwhile(stage: str) -> None:
        if stage == "drawing payroll_state":  # two tables are staged
            run(replace(job, ledger=theirs, out=locate(tmp_path / "their-out")))

    with pytest.raises(StateError, match="is another ledger's" if marked else "give another staging="):
        run(replace(job, log=log_for(meanwhile)))
    assert not (tmp_path / "my-out").exists()
    assert (theirs.state(plan.release) is None) == marked
    published = run(job)
    assert verify_release(locate(published.out / plan.release)).attempt == published.attempt
    state = mine.state(plan.release)
    assert state is not None
    assert (state.draws, state.charges) == (2, 1)


def test_a_run_that_its_ledger_refuses_removes_no_attempt_of_another_ledger(tmp_path: Path) -> None:
    job, theirs = job_of_mine(tmp_path)
    plan, mine, job = job.plan, job.ledger, replace(job, hold=True)
    assert run(job).state == "held"
    with pytest.raises(StateError, match="is another ledger's"):
        run(replace(job, ledger=theirs, registered_only=True))
    approve(mine, plan.release)
    state = mine.state(plan.release)
    assert state is not None
    assert (state.status, state.draws) == ("settled", 1)


def test_no_refusal_depends_on_a_total(tmp_path: Path) -> None:
    """Who chooses the step would learn from one whether a total lies above (2⁶³ − 1) steps."""
    huge = records(2).to_pydict() | {"naics": ["311111", "722511"], "county": ["01001"] * 2, "payroll": [2**62] * 2}
    by_county = [{**QUERIES[1], "sum": "payroll", "by": ["county"]}, {**QUERIES[1], "name": "fine", "sum": "payroll"}]
    place = Place(write_world(tmp_path, pa.table(huge), queries=by_county, budget=[]), tmp_path)
    tables = submit(place).tables
    counties = pq.read_table(tables[by_county[0]["name"]]["path"]).to_pydict()
    fine = pq.read_table(tables["fine"]["path"]).to_pydict()
    held, whole = counties["value"][counties["county"].index("01001")], 2**63 - 1
    assert 0 <= whole - held < 1000  # 2⁶³ is held at the end of the range
    assert all(abs(value - 2**62) < 1000 for value in fine["value"] if value > 2**60)  # two cells below it


def test_tasks_of_two_runs_have_different_names(tmp_path: Path) -> None:
    """A cluster hands the results of equal names to whoever asks, also those of files that changed since."""
    spec = layout_of(load_plan(write_world(tmp_path, records(20)))).spec
    assert tokenize(SumTask(spec, "code", "one")) != tokenize(SumTask(spec, "code", "two"))


# Whole releases of one dataset that race for its budget, and for one name, with a ledger on either database.

RACERS, FITS = 16, 5
# One draw loses UNIT: 1²/(2σ²).
COUNT = {
    "name": "establishments",
    "count": "records",
    "by": ["naics6", "county"],
    "mechanism": {"kind": "gaussian", "sigma": 0.5},
}
BUDGET = [{"at": {"employment": 1, "payroll": 1}, "rho": float(FITS * (UNIT + Fraction(1, 20_000)))}]  # and the test


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world", records(50), queries=[COUNT], budget=BUDGET)


def named(plan: Path, release: str) -> Path:
    path = plan.with_name(f"{release}.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"release": release}))
    return path


def published(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.rglob(MANIFEST))


def test_sixteen_releases_race_for_a_budget_that_fits_five(plan: Path, tmp_path: Path, address: str) -> None:
    places = [Place(named(plan, f"r{number}"), tmp_path, address=address) for number in range(RACERS)]
    codes = submit_at_once(places)
    assert sorted(codes) == [0] * FITS + [3] * (RACERS - FITS)
    won = sorted(f"r{number}" for number, code in enumerate(codes) if code == 0)
    assert published(tmp_path / "out") == won
    for release in won:
        verify_release(locate(tmp_path / "out" / release))
    ledger = create_ledger(address)
    assert sorted(state.release for state in ledger.states() if state.status == "settled") == won
    assert sum(state.charges for state in ledger.states()) == FITS
    ledger.verify()


def test_of_several_runs_of_one_name_into_other_places_one_publishes(plan: Path, tmp_path: Path, address: str) -> None:
    places = [Place(plan, tmp_path / f"place-{number}", address=address) for number in range(6)]
    codes = submit_at_once(places)
    assert sorted(codes) == [0] + [5] * 5
    assert published(tmp_path) == ["small-release"]
    state = create_ledger(address).state("small-release")
    assert (state.status, state.draws, state.charges) == ("settled", 1, 1)
    assert state.out == str(places[codes.index(0)].out)


def test_of_two_plans_of_one_name_one_publishes(plan: Path, tmp_path: Path, address: str) -> None:
    other = tmp_path / "world" / "other.yaml"
    changed = yaml.safe_load(plan.read_text())
    changed["queries"][0]["mechanism"]["sigma"] = 1
    other.write_text(yaml.safe_dump(changed))
    codes = submit_at_once([Place(path, tmp_path, address=address) for path in (plan, other)])
    assert sorted(codes) == [0, 5]
    assert published(tmp_path / "out") == ["small-release"]
    assert create_ledger(address).state("small-release").draws == 1
