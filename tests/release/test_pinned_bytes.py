"""What version 0.1 published, computed and left behind stays as it was, byte for byte.

The expected digests lie in tests/pinned; see its README.md. A difference here means that a published table, a promise
or the way to finish an older release has changed: that is a decision, and never the by-product of tidying up.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import pinned
from tests.support.ledgers import ledger_file
from tests.support.pinned import GENERATED, PLAN_FACTS, TABLES
from tests.support.pinned_plans import PLANS, STATISTICS, VARIANTS
from tests.support.spark import PYSPARKS_OWN

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
OF_THE_PROCESSOR = ("tables/generalized-fine-decimal", "tables/polylog")  # sums of many exponentials
ON_SPARK = ("brief", "firms", "combine")  # together they hold every kind, unit and split


def require_pinned(name: str, attempt: Path) -> None:
    """The tables are the pinned ones: their contents always, their bytes under the PyArrow that is recorded.

    But for standard errors whose last digit is the processor's.
    """
    expected, found = pinned.recorded(TABLES), pinned.attempt_digests(attempt)
    tables = expected["tables"][name]
    assert found.keys() == tables.keys()
    parts = ["contents"]
    if expected["versions"]["pyarrow"] == pinned.versions()["pyarrow"]:
        parts.append("bytes")
    for part in parts:
        differ = [at for at in tables if at != "policy.json" and found[at][part] != tables[at][part]]
        if expected["versions"]["arithmetic"] != pinned.versions()["arithmetic"]:
            differ = [at for at in differ if at.removesuffix(".csv") not in OF_THE_PROCESSOR]
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


# What runs of version 0.1 left behind, which a later version finishes

AT = "employment=10,payroll=500"
COMPLETE = ("drawn", "held", "approved", "published")  # a whole attempt is staged
LEFT = {  # the state of each release in the ledger, whose name says where its run was killed
    "reserved": "reserved",
    "torn": "drawn",
    "drawn": "drawn",
    "held": "held",
    "approved": "held",
    "published": "published",
    "settled": "settled",
}
LOSS = 0.24522650760464434  # of each of them, at AT
TEST = 1 / 20_000  # of records left out, since then
# Of release.json without its date and the ledger's head.
MANIFESTS = {
    "drawn": "53e735d64b1ebf9e16f0fea391974426499a7bccc712949c80980b09bb499b6d",
    "held": "22b6dab24f3e25ff94a56e325051e042885b980890810e030200ff2c8a56cdb6",
    "approved": "5c93cea2fb37c6bd76747e4490c1260c3acbb628df2df004f359a5afa07f7522",
    "published": "f69574cb52b8ef4651272d22ee6a8b302416a3cb7cd71bcc1cd46e750d416fed",
}


@dataclass(frozen=True)
class Old:
    """The place of version 0.1's ledger, and what is done there."""

    root: Path
    ledger: Path

    def act(self, *arguments: object) -> tuple[int, str, str]:
        return pinned.prdp(*arguments, "--ledger", self.ledger)

    def told(self, *arguments: object) -> Any:
        return pinned.told(*arguments, "--ledger", self.ledger)

    def release(self, name: str) -> Any:
        return self.told("release", self.root / f"{name}.yaml")

    def shown(self, name: str) -> Any:
        (shown,) = self.told("ledger", "show", name)
        return shown

    def entries(self, name: str | None = None) -> list[Any]:
        code, out, errors = self.act("ledger", "export", "--confidential")
        assert code == 0, errors
        entries = [json.loads(line) for line in out.splitlines()]
        return [entry for entry in entries if name in (None, entry["release"])]

    def events(self, name: str) -> list[str]:
        return [entry["event"] for entry in self.entries(name)]

    def staged(self, name: str) -> dict[str, bytes]:
        return files(self.root / "state" / "staging" / name)

    def published(self, name: str) -> dict[str, bytes]:
        return files(self.root / "releases" / name)

    def manifest(self, name: str) -> Any:
        return json.loads((self.root / "releases" / name / "release.json").read_text())

    def is_intact(self) -> None:
        told = self.told("ledger", "verify", "--manifests")
        entries = self.entries()
        assert (told["entries"], told["head"]) == (len(entries), entries[-1]["hash"])
        for entry in entries:
            columns = ("seq", "time", "event", "dataset", "release", "attempt", "payload", "salt", "previous")
            assert pinned.chained({c: entry[c] or (None if c == "attempt" else "") for c in columns}) == entry["hash"]

    def spent(self) -> tuple[float, dict[str, Any]]:
        (shown,) = self.told("ledger", "show", "--at", AT)
        return shown["spent"], {each["release"]: (each["state"], each["rho"]) for each in shown["releases"]}


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def this_build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the code that runs here, as it enters a ledger."""
    folder = tmp_path_factory.mktemp("build")
    plan = PLANS["nothing"](folder / "world")
    ledger = ledger_file(folder / "state" / "ledger.sqlite")
    pinned.told("release", plan, "--out", folder / "out", "--ledger", ledger)
    entries = pinned.prdp("ledger", "export", "--confidential", "--ledger", ledger)[1].splitlines()
    return str(next(facts["code"] for facts in (json.loads(line)["facts"] for line in entries) if "code" in facts))


ANOTHER = "sha256:" + "01" * 32


@pytest.fixture(params=["this", "another"])
def old(request: pytest.FixtureRequest, tmp_path: Path, this_build: str) -> Old:
    """What was left behind, by this build of the code, or by another one, such as that of version 0.1."""
    root = tmp_path / "prdp-0.1"
    return Old(root, pinned.restored(root, this_build if request.param == "this" else ANOTHER))


@pytest.fixture
def by_another(tmp_path: Path) -> Old:
    """What was left behind, as the build of version 0.1 wrote it."""
    root = tmp_path / "prdp-0.1"
    return Old(root, pinned.restored(root))


def test_the_old_ledger_is_read_as_it_was(by_another: Old) -> None:
    assert by_another.told("ledger", "verify", "--manifests")["entries"] == 21
    by_another.is_intact()
    spent, releases = by_another.spent()
    assert releases == {name: (state, LOSS) for name, state in LEFT.items()}
    assert spent == 1.7165855532325105
    for name in LEFT:
        shown = by_another.shown(name)
        assert (shown["charges"], shown["draws"]) == (1, int(name != "reserved"))


@pytest.mark.parametrize("name", COMPLETE)
def test_a_whole_attempt_is_finished_and_never_drawn_again(old: Old, name: str) -> None:
    staged = old.staged(name)
    (attempt,) = {path.partition("/")[0] for path in staged}
    before = old.events(name)
    outcome = old.release(name)
    assert outcome["attempt"] == attempt
    if name == "held":
        assert outcome["state"] == "held"
        assert (old.staged(name), old.published(name), old.events(name)) == (staged, {}, before)
        old.told("ledger", "approve", name)
    else:
        assert outcome["state"] == "settled"
    published = old.published(name)
    manifest = published.pop("release.json")
    del staged[f"{attempt}/attempt.json"]
    assert published == staged
    assert old.staged(name) == {}
    told = json.loads(pinned.in_words_of_0_1(manifest.decode()))
    dated = {entry["event"]: entry for entry in old.entries(name)}["published"]
    assert (told.pop("ledger_head"), told.pop("date")) == (dated["hash"], dated["time"][:10])
    assert pinned.sha256(json.dumps(told).encode()) == MANIFESTS[name]
    rest = {
        "drawn": ["published", "settled"],
        "held": ["approved", "published", "settled"],
        "approved": ["published", "settled"],
        "published": ["settled"],
    }
    assert old.events(name) == before + rest[name]
    assert pinned.prdp("verify", old.root / "releases" / name)[0] == 0
    shown = old.shown(name)
    assert (shown["state"], shown["attempt"], shown["draws"], shown["charges"]) == ("settled", attempt, 1, 1)
    assert old.spent()[0] == 1.7165855532325105
    old.is_intact()


def test_a_settled_release_stays_and_can_be_withdrawn(old: Old) -> None:
    before, published = old.entries(), old.published("settled")
    assert old.release("settled")["state"] == "settled"
    assert (old.entries(), old.published("settled")) == (before, published)
    old.told("ledger", "withdraw", "settled", "--reason", "an error in the source")
    assert old.published("settled").keys() == {"withdrawn.json"}
    assert old.spent()[1]["settled"] == ("withdrawn", LOSS)
    old.is_intact()


def test_a_reservation_is_made_anew_with_a_test_of_records_left_out_and_drawn(old: Old) -> None:
    assert old.release("reserved")["state"] == "settled"
    anew = ["aborted", "reserved", "tested"]
    assert old.events("reserved") == ["reserved", *anew, "drawn", "published", "settled"]
    pins = {entry["release"]: entry["facts"]["pin"] for entry in old.entries() if entry["event"] == "drawn"}
    assert pins["reserved"] == pins["drawn"]  # of microdata with the names, sizes and times that 0.1 saw
    assert pinned.prdp("verify", old.root / "releases" / "reserved")[0] == 0
    assert old.spent()[0] == pytest.approx(1.7165855532325105 + TEST, rel=1e-12)
    old.is_intact()


def test_a_torn_attempt_is_destroyed_and_not_drawn_again_without_a_test(old: Old) -> None:
    code, out, errors = old.act("release", old.root / "torn.yaml")
    assert (code, out) == (5, "")
    assert "was drawn by another build of prdp, whose policies may differ" in errors
    assert old.events("torn") == ["reserved", "drawn", "destroyed"]
    old.told("ledger", "abort", "torn")
    assert old.spent()[1]["torn"] == ("aborted", LOSS)
    assert old.published("torn") == {}
    assert old.staged("torn") == {}
    assert old.spent()[0] == 1.7165855532325105
    old.is_intact()


def test_a_held_attempt_is_rejected_and_stays_charged(old: Old) -> None:
    old.told("ledger", "reject", "held", "--reason", "a wrong year")
    assert (old.staged("held"), old.published("held")) == ({}, {})
    assert old.act("release", old.root / "held.yaml")[0] == 5
    assert old.spent()[1]["held"] == ("rejected", LOSS)
    old.is_intact()


def test_changed_staged_files_are_not_published(old: Old) -> None:
    for name in ("held", "approved", "published"):
        (table,) = (old.root / "state" / "staging" / name).rglob("payroll.csv")
        table.write_bytes(table.read_bytes() + b"\n")
    assert old.act("ledger", "approve", "held")[0] == 5
    assert old.act("release", old.root / "approved.yaml")[0] == 5
    assert old.act("release", old.root / "published.yaml")[0] == 5
    old.is_intact()


def test_old_budgets_and_facts_bind_new_releases(by_another: Old) -> None:
    plan = yaml.safe_load((by_another.root / "settled.yaml").read_text())
    path = by_another.root / "later.yaml"

    def release(**changes: Any) -> tuple[int, str, str]:
        path.write_text(yaml.safe_dump(plan | {"release": "later", "supersedes": "settled"} | changes))
        return by_another.act("release", path)

    count = {**plan["queries"][0], "mechanism": {"kind": "gaussian", "sigma": 0.4}}
    code, _, errors = release(queries=[count])
    assert code == 3, errors
    assert "requested rho 3.12506, spent 1.71659 by reserved 0.245227" in errors
    measures = {**plan["dataset"]["measures"], "payroll": {"column": "payroll", "type": "decimal", "step": 0.5}}
    assert release(dataset={**plan["dataset"], "measures": measures})[0] == 5
    assert release(dataset={**plan["dataset"], "name": "another-name"})[0] == 5
    code, _, errors = release()
    assert code == 0, errors
    assert by_another.events("later") == ["reserved", "tested", "drawn", "published", "settled"]
    assert by_another.spent()[0] == pytest.approx(1.7165855532325105 + LOSS + TEST, rel=1e-12)
    by_another.is_intact()


def test_a_changed_entry_shows(tmp_path: Path) -> None:
    """The twin: the chain that the test makes is one that the ledger checks."""
    ledger = pinned.restored(tmp_path / "prdp-0.1")
    data = ledger.read_bytes()
    assert data.count(b"pinned-family") > 1
    ledger.write_bytes(data.replace(b"pinned-family", b"pinned-famili"))
    assert pinned.prdp("ledger", "verify", "--ledger", ledger)[0] == 5
