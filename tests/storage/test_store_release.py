"""Releases with microdata, staging and output in an object store: the same bytes, one draw seen, nothing left over."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from jobs.cli import main
from pipeline.base.errors import MicrodataError, StateError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.spark import SparkEngine
from pipeline.operations.ledger_health import require_in_chain
from pipeline.publication.manifest import verify_release
from pipeline.publication.signing import SigningKey
from pipeline.release.attempts import MARK, give_up
from pipeline.release.officers import approve, withdraw
from pipeline.release.publish import MANIFEST, build_manifest, copy_to_output
from pipeline.storage.objects import StorePath
from pipeline.storage.paths import locate
from pipeline.storage.staging import SIGNATURE, Staging
from tests.support.dask_cluster import ROOT, local_cluster
from tests.support.ledgers import ATTEMPT, ledger_file, reservation, staged_files
from tests.support.parity import PLANS, RELEASE, released
from tests.support.patience import PATIENCE
from tests.support.spark import PYSPARKS_OWN, local_engine
from tests.support.store import ENVIRONMENT, UNCONDITIONAL, Store, contents, upload
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, QUERIES, records, write_world


@pytest.fixture
def place(store: Store, tmp_path: Path) -> Place:
    return stored(write_world(tmp_path, records(300), queries=QUERIES[2:]), tmp_path / "run", store.bucket())


def stored(plan: Path, folder: Path, at: StorePath) -> Place:
    upload(plan.parent / "microdata", at / "microdata")
    return Place(plan, folder, at)


def files(place: Place, attempt: str) -> dict[str, bytes]:
    return contents(place.out / RELEASE / attempt)


def left(place: Place) -> list[str]:
    """What is staged still."""
    assert place.staging is not None
    return sorted(name for name in contents(place.staging) if name != MARK)


@pytest.mark.parametrize("name", [pytest.param("full", marks=pytest.mark.drill), "cells", "none"])
def test_a_release_in_a_store_is_the_local_one(tmp_path: Path, store: Store, name: str) -> None:
    plan = PLANS[name](tmp_path)
    place = stored(plan, tmp_path / "run", store.bucket())
    published = submit(place)
    assert files(place, published.attempt) == released(plan, tmp_path / "local", None)
    assert verify_release(locate(place.out / RELEASE)).attempt == published.attempt
    assert left(place) == []
    again = submit(place, key=bytes(32))
    assert (again.attempt, place.state().draws) == (published.attempt, 1)


@pytest.fixture
def cluster() -> Iterator[DaskEngine]:
    with local_cluster() as address:
        yield DaskEngine(address)


@pytest.fixture
def spark() -> Iterator[SparkEngine]:
    with local_engine() as engine:
        yield engine


def test_names_of_folders_in_a_store_say_what_those_here_do(tmp_path: Path, store: Store) -> None:
    microdata = records(300)
    expected = released(write_world(tmp_path / "whole", microdata), tmp_path / "whole", None)
    plan = write_world(tmp_path, None)
    at = store.bucket()
    for county in COUNTIES:
        rows = microdata.filter(pc.equal(microdata["county"], county)).drop_columns(["county"])
        pq.write_table(rows, whole := pa.BufferOutputStream())
        (at / "microdata" / f"county={county}" / "part.parquet").write(whole.getvalue())
    place = Place(plan, tmp_path / "run", at)
    assert files(place, submit(place).attempt) == expected


@PYSPARKS_OWN
@pytest.mark.drill
@pytest.mark.parametrize("name", ["cluster", "spark"])
def test_other_engines_release_from_a_store_what_threads_do(
    tmp_path: Path, store: Store, name: str, request: pytest.FixtureRequest
) -> None:
    plan = PLANS["cells"](tmp_path)
    place = stored(plan, tmp_path / name, store.bucket())
    published = submit(place, engine=request.getfixturevalue(name))
    assert files(place, published.attempt) == released(plan, tmp_path / "local", None)
    assert left(place) == []  # neither sealed sums nor totals
    other = stored(plan, tmp_path / "other", store.bucket())  # the broken twin: another key
    assert files(other, submit(other, key=bytes(32)).attempt) != files(place, published.attempt)


@pytest.mark.parametrize("where", ["staging", "out"])
def test_staging_and_output_may_lie_apart(tmp_path: Path, store: Store, where: str) -> None:
    plan = write_world(tmp_path, records(100))
    bucket, code = (
        store.bucket(),
        ["release", str(plan), "--ledger", ledger_file(tmp_path / "state" / "ledger"), "--csv"],
    )
    uris = {"out": str(tmp_path / "out"), "staging": str(tmp_path / "staged")} | {where: str(bucket / where)}
    assert main([*code, "--out", uris["out"], "--staging", uris["staging"]]) == 0
    assert main(["verify", uris["out"] + f"/{RELEASE}" if where == "staging" else str(bucket / "out" / RELEASE)]) == 0
    if where == "out":
        kept = contents(bucket / "out" / RELEASE)
        assert {Path(name).suffix for name in kept} == {".json", ".html", ".css", ".js", ".parquet", ".csv"}
    assert contents(bucket / "staging").keys() <= {MARK}
    assert staged_files(tmp_path / "staged") == []


def killed(place: Place, step: str) -> None:
    command = [sys.executable, "-m", "tests.support.store_release", place.plan, place.folder, str(place.store), step]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=PATIENCE).returncode == -signal.SIGKILL


def test_a_run_killed_before_the_manifest_is_finished_from_the_store(place: Place, tmp_path: Path) -> None:
    killed(place, "manifest")
    state = place.state()
    assert (state.status, state.stagings) == ("published", (str(place.staging),))
    assert MANIFEST not in contents(place.out / RELEASE)
    assert left(place) != []
    # The next run names no staging of its own: what was drawn is found where the ledger says.
    code = ["release", str(place.plan), "--ledger", ledger_file(place.ledger_path), "--out", str(place.out)]
    assert main([*code, "--data", str(tmp_path / "microdata")]) == 0
    assert verify_release(locate(place.out / RELEASE)).attempt == state.attempt
    assert (place.state().status, place.state().draws, left(place)) == ("settled", 1, [])


def test_what_a_killed_run_staged_in_part_is_destroyed_and_drawn_again(place: Place) -> None:
    killed(place, "staged")
    first = place.state().attempt
    assert left(place) != []
    published = submit(place)
    assert published.attempt != first
    assert (place.state().draws, place.state().charges, left(place)) == (2, 1, [])
    assert {name.split("/")[0] for name in contents(place.out / RELEASE)} == {MANIFEST, "index.html", published.attempt}


def test_an_abort_destroys_what_is_staged_in_the_store(place: Place) -> None:
    killed(place, "staged")
    give_up(place.ledger(), RELEASE)
    assert (place.state().status, left(place)) == ("aborted", [])


def test_a_held_release_is_approved_and_withdrawn_in_the_store(place: Place) -> None:
    attempt = submit(place, hold=True).attempt
    assert left(place)
    assert not place.out.files()
    approve(place.ledger(), RELEASE)
    assert not left(place)
    assert verify_release(locate(place.out / RELEASE)).attempt == attempt
    assert require_in_chain(place.ledger(), locate(place.out / RELEASE)) == RELEASE
    withdraw(place.ledger(), RELEASE, "wrong codes")
    assert list(contents(place.out / RELEASE)) == ["index.html", "withdrawn.json"]
    with pytest.raises(StateError, match="was withdrawn on"):
        verify_release(locate(place.out / RELEASE))
    assert require_in_chain(place.ledger(), locate(place.out / RELEASE)) == RELEASE


def test_strays_are_destroyed(place: Place) -> None:
    assert place.staging is not None
    killed(place, "staged")
    for name in ("totals-of-a-killed-run/sums-0", f"{ATTEMPT}/tables/q/part-00000.parquet"):
        (place.staging / RELEASE / name).write(b"stray")
    (place.staging / "other-release" / ATTEMPT / "attempt.json").write(b"{}")
    submit(place)
    assert left(place) == [f"other-release/{ATTEMPT}/attempt.json"]


def test_a_store_that_does_not_answer_is_no_reason_to_draw_again(store: Store) -> None:
    bucket = store.bucket()
    staging = Staging(locate(bucket), "r", ATTEMPT)
    facts = filled_in(staging)
    assert staging.read_complete() == facts
    (bucket / "r" / ATTEMPT / "policy.json").write(b"[]")
    assert staging.read_complete() is None
    store.deny(bucket, "GetObject")
    with pytest.raises(StateError, match="access is denied"):
        staging.read_complete()


def filled_in(staging: Staging) -> object:
    """A complete staged attempt of two small objects."""
    staging.create()
    folder = staging.table_folder("q")
    assert isinstance(folder, StorePath)
    (folder / "part-0.parquet").write(b"rows")
    staging.write_text("policy.json", "{}")
    return staging.complete({"engine": {"name": "dask", "versions": {}}, "tables": [{"query": "q", "rows": 2}]})


def test_another_ledgers_release_is_never_replaced(tmp_path: Path, store: Store) -> None:
    bucket = store.bucket()
    for name in ("one", "two"):
        ledger = Place(tmp_path, tmp_path / name).ledger()
        ledger.reserve(reservation("r", out=str(bucket / "out")))
        attempt = ledger.draw("r", "sha256:pin", str(bucket / "staging" / name))
        staging = Staging(locate(bucket / "staging" / name), "r", attempt)
        facts = filled_in(staging)
        state = ledger.publish("r", attempt, facts.digest)  # type: ignore[attr-defined]
        manifest = build_manifest(state, facts)  # type: ignore[arg-type]
        if name == "one":
            for _ in range(2):  # again, as after a crash
                copy_to_output(staging, facts, locate(bucket / "out"), manifest)  # type: ignore[arg-type]
            kept = contents(bucket / "out")
        else:
            with pytest.raises(StateError, match="names another attempt"):
                copy_to_output(staging, facts, locate(bucket / "out"), manifest)  # type: ignore[arg-type]
    assert contents(bucket / "out") == kept


def test_a_signature_in_a_store_is_there_before_its_manifest(tmp_path: Path, store: Store) -> None:
    bucket, signing = store.bucket(), SigningKey(Ed25519PrivateKey.generate())
    ledger = Place(tmp_path, tmp_path / "one").ledger()
    ledger.reserve(reservation("r", out=str(bucket / "out")))
    staging = Staging(locate(bucket / "staging"), "r", ledger.draw("r", "sha256:pin", str(bucket / "staging")))
    facts = filled_in(staging)
    manifest = build_manifest(ledger.publish("r", staging.attempt, facts.digest), facts)  # type: ignore[arg-type, attr-defined]
    folder = copy_to_output(staging, facts, locate(bucket / "out"), manifest, signing)  # type: ignore[arg-type]
    (folder / MANIFEST).delete()  # as a crash leaves it
    with pytest.raises(StateError, match="site's signing key"):
        copy_to_output(staging, facts, locate(bucket / "out"), manifest)  # type: ignore[arg-type]
    copy_to_output(staging, facts, locate(bucket / "out"), manifest, signing)  # type: ignore[arg-type]
    assert verify_release(folder, signing.public).signed_by == signing.public.fingerprint
    (folder / SIGNATURE).delete()
    with pytest.raises(StateError, match="not signed"):
        verify_release(folder, signing.public)


def test_verify_finds_what_was_changed_in_the_store(place: Place) -> None:
    attempt = submit(place).attempt
    folder = place.out / RELEASE
    policy = folder / attempt / "policy.json"
    whole = policy.read()
    for change, words in (
        (lambda: policy.write(b"[]"), "differs from the manifest"),
        (policy.delete, "is missing"),
        (lambda: (folder / attempt / "more.txt").write(b""), "not in the manifest"),
        (lambda: (folder / MANIFEST).write(b"{"), "no JSON"),
        ((folder / MANIFEST).delete, "nothing is published"),
    ):
        change()
        with pytest.raises(StateError, match=words):
            verify_release(locate(folder))
        if words == "is missing":
            policy.write(whole)
            verify_release(locate(folder))
        if words == "not in the manifest":
            (folder / attempt / "more.txt").delete()


@pytest.mark.parametrize("stage", ["reading the microdata", "drawing payroll_state"])
def test_an_object_that_changed_during_the_run_is_refused(
    place: Place, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.release.publish.CELLS_AT_ONCE", 1)
    assert place.store is not None
    at = place.store / "microdata" / "part-0.parquet"
    other = upload(write_world(tmp_path / "other", records(300, seed=2)).parent / "microdata", place.store / "other")
    data = (other / "part-0.parquet").read()
    with pytest.raises(MicrodataError, match="changed during the run"):
        submit(place, say=lambda said: at.write(data) if said == stage else None)
    assert contents(place.out) == {}
    assert left(place) == []


def test_a_store_that_cannot_be_used_is_refused_before_anything_is_reserved(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_world(tmp_path, records(20))
    good, read_only, plain = store.bucket(), store.bucket(), store.bucket(UNCONDITIONAL)
    store.deny(read_only, "PutObject")
    missing, secret = store.uri("no-such-bucket", "x"), "s3://CANARYUSER:CANARYSECRET@bucket/x"
    ledger = tmp_path / "state" / "ledger.sqlite"
    code = ["release", str(plan), "--ledger", ledger_file(ledger)]
    for options, exit_code, words in (
        (["--out", str(read_only)], 5, "access is denied"),
        (["--out", missing], 5, "no such bucket"),
        (["--out", str(plain)], 5, "in spite of If-None-Match"),
        (["--out", "gs://bucket/out"], 5, "create-if-absent"),
        (["--out", "ftp://host/out"], 2, "ftp://"),
        (["--out", secret], 2, "credentials"),
        (["--staging", str(read_only), "--out", str(good / "out")], 5, "access is denied"),
        (["--staging", str(good / "out"), "--out", str(good / "out")], 5, "overlap"),
        (["--data", missing, "--out", str(good / "out")], 2, "no such"),
        (["--data", str(good / "nothing"), "--out", str(good / "out")], 2, "no such object"),
    ):
        assert main([*code, *options]) == exit_code, options
        told = capsys.readouterr()
        lines = [line for line in told.err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1, told.err
        assert words in lines[0]
        assert "AWS Error" not in told.err
        assert not any(secret in told.err for secret in (*ENVIRONMENT.values(), "CANARY") if secret != "true")
    assert Place(plan, tmp_path).ledger().states() == []
    assert contents(good) == {}


def test_no_credential_is_in_what_a_run_leaves(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    submit(place)
    assert main(["verify", str(place.out / RELEASE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["release"] == RELEASE
    everything = b"".join([place.ledger_path.read_bytes(), *contents(place.out).values()])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert ENVIRONMENT[name].encode() not in everything


def test_a_plan_names_its_microdata_by_uri(tmp_path: Path, store: Store) -> None:
    bucket = store.bucket()
    upload(write_world(tmp_path / "a", records(50)).parent / "microdata", bucket / "data")
    plan = write_world(tmp_path / "b", None, dataset={"path": str(bucket / "data")})
    submit(Place(plan, tmp_path / "run"))
    assert Place(plan, tmp_path / "run").state().status == "settled"
