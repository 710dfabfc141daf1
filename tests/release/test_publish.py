"""Publishing: one whole release or none, wherever it is interrupted, and what outsiders can verify."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.publication.manifest import verify_release
from pipeline.publication.policy_document import guarantee
from pipeline.release.publish import build_manifest, copy_to_output, require_publishable
from pipeline.storage.paths import locate
from pipeline.storage.staging import AttemptContents, Staging
from tests.support.ledgers import ABOUT, ATTEMPT, MEMORY, child, filled, modes, staged
from tests.support.patience import PATIENCE


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def published(ledger: Ledger, out: Path) -> tuple[Staging, AttemptContents, ReleaseState]:
    attempt = staged(ledger, "r", out)
    staging = Staging(locate(ledger.staging_root), "r", attempt)
    facts = staging.read_complete()
    return staging, facts, ledger.publish("r", attempt, facts.digest)


# The output place


def test_an_output_place_is_checked_without_a_trace(tmp_path: Path, ledger: Ledger) -> None:
    require_publishable(locate(tmp_path / "new" / "out"), "r", locate(ledger.staging_root), None)
    assert not (tmp_path / "new").exists()


def test_an_output_place_that_cannot_be_made_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written"):
        require_publishable(locate(tmp_path / "file" / "out"), "r", locate(ledger.staging_root), None)


def test_an_output_place_and_staging_must_not_overlap(tmp_path: Path, ledger: Ledger) -> None:
    root = ledger.staging_root
    (tmp_path / "link").symlink_to(root.parent)
    for out in (root, root / "out", root.parent, tmp_path, tmp_path / "link" / "staging" / "out"):
        with pytest.raises(StateError, match="overlap"):
            require_publishable(locate(out), "r", locate(root), None)


def test_a_place_that_holds_another_release_of_the_name_is_refused(ledger: Ledger, out: Path) -> None:
    staging, facts, state = published(ledger, out)
    copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
    require_publishable(locate(out), "r", locate(ledger.staging_root), state.attempt)
    require_publishable(locate(out), "s", locate(ledger.staging_root), None)
    for attempt in (None, ATTEMPT):
        with pytest.raises(StateError, match="is there already"):
            require_publishable(locate(out), "r", locate(ledger.staging_root), attempt)
    (out / "r" / "release.json").write_text("{")
    with pytest.raises(StateError, match="no manifest of prdp"):
        require_publishable(locate(out), "r", locate(ledger.staging_root), None)


# Publishing


def test_a_release_leaves_its_files_and_a_manifest(ledger: Ledger, out: Path) -> None:
    staging, facts, state = published(ledger, out)
    before = os.umask(0o022)
    try:
        folder = Path(copy_to_output(staging, facts, locate(out), build_manifest(state, facts)))
    finally:
        os.umask(before)
    assert modes(out) == {(True, 0o755), (False, 0o644)}
    # no second names of staged files: their times tell how long confidential totals took to draw
    numbers = [{file.stat().st_ino for file in place.rglob("*")} for place in (Path(str(staging.path)), folder)]
    assert all(numbers)
    assert numbers[0].isdisjoint(numbers[1])
    manifest = json.loads((folder / "release.json").read_text())
    assert manifest["release"] == "r"
    assert manifest["attempt"] == state.attempt
    assert manifest["plan_digest"] == state.digest
    assert manifest["engine"] == ABOUT["engine"]
    assert manifest["date"] == state.date
    assert manifest["guarantee"] == guarantee()
    assert manifest["ledger_head"] == ledger.head()[1]
    [table] = manifest["tables"]
    assert (table["query"], table["rows"]) == ("q", 2)
    assert [file["path"] for file in table["files"]] == [
        f"{state.attempt}/tables/q/part-{part}.parquet" for part in range(2)
    ]
    assert [file["path"] for file in manifest["files"]] == [
        f"{state.attempt}/{name}" for name in ("policy.json", "report.html")
    ]
    verified = verify_release(locate(folder))
    assert (verified.attempt, verified.files, verified.ledger_head) == (state.attempt, 4, state.head)
    # Again, as after a crash: nothing changes, not even a time.
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")} == times


def test_a_manifest_names_no_fact_that_depends_on_the_microdata(ledger: Ledger, out: Path) -> None:
    _, facts, state = published(ledger, out)
    manifest = build_manifest(state, facts)
    assert set(manifest) == {
        *("release", "attempt", "plan_digest", "engine", "date", "tables", "files", "guarantee", "ledger_head")
    }
    # Neither the pin of the input nor a time of day, nor how many draws there were.
    text = json.dumps(manifest)
    assert "sha256:pin" not in text
    assert len(manifest["date"]) == len("2026-01-01")


def test_the_guarantee_says_what_is_and_is_not_promised() -> None:
    told = guarantee()
    text = told["words"] + told["formula"] + " ".join(told["assumptions"])
    for needed in (
        *("concentrated", "every order α above 1", "both directions", "added or removed", "policy.json"),
        *("α·P(r)", "Σ_q P_q(Δ_q(r))", "AES-256 is a pseudo-random function", "No implementation δ"),
        *("meet the input contract", "A refusal is not private"),
    ):
        assert needed in text


def test_only_what_the_ledger_published_gets_a_manifest(ledger: Ledger, out: Path) -> None:
    attempt = staged(ledger, "r", out)
    facts = Staging(locate(ledger.staging_root), "r", attempt).read_complete()
    with pytest.raises(StateError, match="not those that the ledger published"):
        build_manifest(ledger.state("r"), facts)
    state = ledger.publish("r", attempt, facts.digest)
    with pytest.raises(StateError, match="not those that the ledger published"):
        build_manifest(state, replace(facts, about=ABOUT | {"tables": []}))


def test_a_second_attempt_is_never_placed_beside_a_published_one(ledger: Ledger, out: Path) -> None:
    staging, facts, state = published(ledger, out)
    copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
    before = sorted(out.rglob("*"))
    other = Staging(locate(ledger.staging_root), "r", ATTEMPT)
    other_facts = filled(other)
    with pytest.raises(StateError, match="names another attempt"):
        copy_to_output(other, other_facts, locate(out), {"attempt": ATTEMPT})
    assert sorted(out.rglob("*")) == before


def test_files_that_crept_in_stop_the_publication(ledger: Ledger, out: Path) -> None:
    staging, facts, state = published(ledger, out)
    target = out / "r" / state.attempt
    target.mkdir(parents=True)
    (target / ".policy.json.partial").write_text("left by a crash")
    for name, told in (("extra.txt", "does not belong"), ("policy.json", "other contents")):
        (target / name).write_text("other")
        with pytest.raises(StateError, match=told):
            copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
        assert not (out / "r" / "release.json").exists()
        (target / name).unlink()
    copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
    verify_release(locate(out / "r"))


def test_a_staged_file_that_changed_is_not_published(ledger: Ledger, out: Path) -> None:
    staging, facts, state = published(ledger, out)
    (Path(staging.path) / "policy.json").write_text("[]")
    with pytest.raises(StateError, match="changed since it was staged"):
        copy_to_output(staging, facts, locate(out), build_manifest(state, facts))
    assert not (out / "r" / "release.json").exists()
    assert not list(out.rglob("*policy.json*"))


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.drill)])
def test_publishing_interrupted_anywhere_ends_in_one_whole_release(memory: Path, every: int) -> None:
    process = child("crash_publish", memory, every)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    runs = [json.loads(line) for line in told.splitlines()]
    assert [run["status"] for run in runs] == [signal.SIGKILL] * (len(runs) - 1) + [0]
    # Deaths fell before, between and after all states.
    assert {run["after"]["status"] for run in runs} == {None, "reserved", "drawn", "published", "settled"}
    for run in runs:
        after, end = run["after"], run["end"]
        # A reader sees a whole signed release or none; a draw shows outside staging only once the ledger chose it.
        assert after["manifest"] == ("verified" in after)
        assert after.get("verified", True) is True, run
        assert not after["attempts"] or after["status"] in ("published", "settled")
        assert not after["manifest"] or after["status"] in ("published", "settled")
        # The next run finishes without repair; what was complete is not drawn again.
        assert run["again"] == 0
        assert (end["status"], end["verified"]) == ("settled", True), run
        assert (len(end["attempts"]), end["others"], end["staged"]) == (1, ["release.json", "release.json.sig"], []), (
            run
        )
        assert end["draws"] <= after["draws"] + 1
        if after["status"] in ("published", "settled"):
            assert end["draws"] == after["draws"]


# Verifying, by outsiders


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda folder, attempt: (attempt / "policy.json").write_text("[]"), r"policy\.json differs"),
        (lambda folder, attempt: (attempt / "policy.json").unlink(), r"policy\.json is missing"),
        (lambda folder, attempt: (attempt / "more.txt").write_text(""), r"more\.txt is not in the manifest"),
        (lambda folder, attempt: (attempt / "link").symlink_to(folder), "link is not in the manifest"),
        (lambda folder, attempt: (folder / "release.json").unlink(), "nothing is published"),
        (lambda folder, attempt: shutil.rmtree(folder), "nothing is published"),
        (lambda folder, attempt: (folder / "release.json").write_text("{"), "no JSON"),
        (lambda folder, attempt: (folder / "release.json").write_text("{}"), "lacks"),
        (lambda folder, attempt: (folder / "release.json").write_text("[]"), "lacks"),
        (lambda folder, attempt: edit(folder, tables=[]), "lacks"),
        (lambda folder, attempt: edit(folder, attempt=".."), "lacks"),
        (lambda folder, attempt: edit(folder, files=[listed("/etc/hostname")]), "not inside the attempt"),
        (lambda folder, attempt: edit(folder, files=[listed(f"{attempt.name}/../x")]), "not inside the attempt"),
        (lambda folder, attempt: edit(folder, files=[listed(f"{attempt.name}/tables")]), "no ordinary file"),
    ],
)
def test_outsiders_find_what_does_not_fit_the_manifest(ledger: Ledger, out: Path, break_it, told: str) -> None:  # type: ignore[no-untyped-def]
    staging, facts, state = published(ledger, out)
    folder = Path(copy_to_output(staging, facts, locate(out), build_manifest(state, facts)))
    break_it(folder, folder / state.attempt)
    with pytest.raises(StateError, match=told) as error:
        verify_release(locate(folder))
    assert "\n" not in str(error.value)


def edit(folder: Path, **changes: object) -> None:
    path = folder / "release.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def listed(path: str) -> dict[str, object]:
    return {"path": path, "sha256": "0" * 64, "bytes": 0}
