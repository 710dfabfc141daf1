"""What version 0.1 published, computed and left behind stays as it was, byte for byte.

The expected digests lie in tests/pinned; see its README.md. A difference here means that a published table, a promise
or the way to finish an older release has changed: that is a decision, and never the by-product of tidying up.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import pinned
from tests.support.pinned import GENERATED, PLAN_FACTS, PLANS, STATISTICS, TABLES, VARIANTS
from tests.support.spark import PYSPARKS_OWN, local_engine

pytestmark = pytest.mark.timeout(300)

KINDS = {
    "exponential_polylog",
    "gaussian",
    "generalized_gaussian",
    "groupwise_log",
    "groupwise_noisy",
    "laplace",
    "log",
    "root",
    "symmetric_stable",
    "unit_splitting",
}
ON_SPARK = ("brief", "firms", "combine")  # together they hold every kind, unit and split


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_engine() as engine:
        yield engine


def require_pinned(name: str, attempt: Path) -> None:
    """The tables are the pinned ones: their contents always, their bytes under the PyArrow that is recorded."""
    expected, found = pinned.recorded(TABLES), pinned.attempt_digests(attempt)
    tables = expected["tables"][name]
    assert found.keys() == tables.keys()
    parts = ["contents"]
    if expected["versions"]["pyarrow"] == pinned.versions()["pyarrow"]:
        parts.append("bytes")
    for part in parts:
        differ = [at for at in tables if at != "policy.json" and found[at][part] != tables[at][part]]
        assert differ == [], f"{part} of {name}"
    assert found["policy.json"] == tables["policy.json"]


# Tables


@pytest.mark.parametrize("name", PLANS)
def test_tables_are_those_of_version_0_1(tmp_path: Path, name: str) -> None:
    plan = PLANS[name](tmp_path / "world")
    require_pinned(name, pinned.release(plan, tmp_path / "release"))


@PYSPARKS_OWN
@pytest.mark.parametrize("name", ON_SPARK)
def test_tables_of_spark_are_those_of_version_0_1(tmp_path: Path, spark: Any, name: str) -> None:
    plan = PLANS[name](tmp_path / "world")
    require_pinned(name, pinned.release(plan, tmp_path / "release", spark))


@PYSPARKS_OWN
@pytest.mark.drill
@pytest.mark.parametrize("name", [name for name in PLANS if name not in ON_SPARK])
def test_all_tables_of_spark_are_those_of_version_0_1(tmp_path: Path, spark: Any, name: str) -> None:
    plan = PLANS[name](tmp_path / "world")
    require_pinned(name, pinned.release(plan, tmp_path / "release", spark))


@pytest.mark.parametrize("name", ["cells", "combine", "firms"])
def test_tables_of_prepared_microdata_are_the_same(tmp_path: Path, name: str) -> None:
    plan = PLANS[name](tmp_path / "world")
    pinned.told("prepare", plan.parent / "microdata", "--plan", plan, "--out", tmp_path / "prepared")
    require_pinned(name, pinned.release(plan, tmp_path / "release", microdata=tmp_path / "prepared"))


def test_another_key_gives_other_tables_everywhere(tmp_path: Path) -> None:
    """The twin: the digests see what is drawn."""
    plan = PLANS["firms"](tmp_path / "world")
    found = pinned.attempt_digests(pinned.release(plan, tmp_path / "release", key=bytes(32)))
    expected = pinned.recorded(TABLES)["tables"]["firms"]
    assert [at for at in found if found[at]["bytes"] == expected[at]["bytes"]] == ["policy.json"]
    assert all(found[at]["contents"] != expected[at]["contents"] for at in found if at != "policy.json")


def test_the_least_change_of_a_scale_shows(tmp_path: Path) -> None:
    """The twin: a scale that is one unit of its last place larger."""
    plan = PLANS["nothing"](tmp_path / "world")
    changed = yaml.safe_load(plan.read_text())
    changed["queries"][1]["mechanism"]["sigma"] = 3.0000000000000004
    plan.write_text(yaml.safe_dump(changed))
    found, expected = pinned.plan_facts(plan), pinned.recorded(PLAN_FACTS)["plans"]["nothing"]
    assert found["plan_digest"] != expected["plan_digest"]
    assert found["losses"] != expected["losses"]


def test_the_plans_hold_every_kind_form_and_statistic(tmp_path: Path) -> None:
    assert {variant["kind"] for variant in VARIANTS.values()} == KINDS
    for kind, choices in {
        "root": ("noise", "estimator"),
        "log": ("noise", "estimator"),
        "laplace": ("policy", "lattice"),
        "generalized_gaussian": ("policy", "lattice"),
        "exponential_polylog": ("policy", "lattice"),
    }.items():
        for choice in choices:
            assert len({v.get(choice) for v in VARIANTS.values() if v["kind"] == kind}) == 2, (kind, choice)
    queries = yaml.safe_load(PLANS["kinds"](tmp_path / "kinds").read_text())["queries"]
    for statistic, given in STATISTICS.items():
        kinds = {q["mechanism"]["kind"] for q in queries if given.items() <= q.items()}
        assert kinds == {kind for kind in KINDS if statistic == "count" or not kind.startswith("groupwise")}
    split = yaml.safe_load(PLANS["splits"](tmp_path / "splits").read_text())["queries"]
    assert {q["mechanism"]["parts"]["31-33"]["kind"] for q in split} == KINDS
    assert any("where" in q for q in split)
    brief = yaml.safe_load(PLANS["brief"](tmp_path / "brief").read_text())["queries"]
    mechanisms = [q["mechanism"] for q in brief]
    assert {m.get("kind") or m["parts"]["31-33"]["kind"] for m in mechanisms} == KINDS


# Plans and losses


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return pinned.plan_files(tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize("name", pinned.recorded(PLAN_FACTS)["plans"])
def test_digests_and_losses_of_plans_are_those_of_version_0_1(plans: dict[str, Path], name: str) -> None:
    """Losses to the last bit under the recorded versions of what computes them; under others nearly."""
    expected, found = pinned.recorded(PLAN_FACTS), pinned.plan_facts(plans[name])
    facts = expected["plans"][name]
    assert found["plan_digest"] == facts["plan_digest"]
    if {**expected["versions"], "pyarrow": ""} == {**pinned.versions(), "pyarrow": ""}:
        assert found == facts
    else:
        assert found["losses"].keys() == facts["losses"].keys()
        assert numbers(found) == pytest.approx(numbers(facts), rel=1e-9, nan_ok=True)


def numbers(facts: dict[str, Any]) -> list[float]:
    """All numbers of the losses, in order."""
    found: list[float] = []

    def number(text: str) -> float:
        found.append(float(text))
        return found[-1]

    json.loads(json.dumps([facts["total"], facts["losses"]], sort_keys=True), parse_float=number, parse_int=number)
    return found


def test_every_plan_is_pinned(plans: dict[str, Path]) -> None:
    assert plans.keys() == pinned.recorded(PLAN_FACTS)["plans"].keys()
    assert set(PLANS) == set(pinned.recorded(TABLES)["tables"])


# Synthetic microdata


def test_generated_microdata_are_those_of_version_0_1(tmp_path: Path) -> None:
    """Of every file; the records themselves under the recorded version of NumPy, whose random numbers they follow."""
    expected, found = pinned.recorded(GENERATED), pinned.generated_contents(tmp_path / "made")
    same = expected["versions"]["numpy"] == pinned.versions()["numpy"]
    files = expected["files"]
    assert found.keys() == files.keys()
    assert [name for name in files if (same or "microdata" not in name) and found[name] != files[name]] == []
