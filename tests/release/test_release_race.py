"""Whole releases of one dataset that race for its budget, and for one name, with a ledger on either database."""

from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from pipeline.ledger.store import create_ledger
from pipeline.publication.manifest import verify_release
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST
from tests.support.ledgers import UNIT
from tests.support.submit import Place, submit_at_once
from tests.support.world import records, write_world

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
