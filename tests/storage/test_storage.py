"""Places by URI: what they name, what they refuse, and what a store's objects give and cannot give."""

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PlanError, PrdpError, StateError
from pipeline.microdata.source import find, pin
from pipeline.storage import conditional
from pipeline.storage.location import Stored, overlap, place
from tests.support.leaks import told
from tests.support.store import UNCONDITIONAL, Store, contents, running

LOOPBACK = "endpoint_override=127.0.0.1:9000&scheme=http"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running() as server:
        yield server


# -- names -----------------------------------------------------------------------------------------------------------


def test_paths_and_uris_name_places(tmp_path: Path) -> None:
    assert place("data", folder=tmp_path) == tmp_path / "data"
    assert place("../data", folder=tmp_path) == tmp_path.parent / "data"
    assert place(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert place("s3://bucket/a/b/") == place("s3a://bucket/a/b") == Stored("s3", "bucket", "a/b")
    assert place(f"S3://bucket?{LOOPBACK}") == Stored("s3", "bucket", "", LOOPBACK)
    assert place("abfs://container@account.dfs.core.windows.net/x").key == "x"


@given(
    st.lists(st.text(st.characters(exclude_characters="/", exclude_categories=("Cs", "Cc")), min_size=1), max_size=4)
)
def test_the_uri_of_a_place_names_it_again(parts: list[str]) -> None:
    at = Stored("s3", "bucket", "", LOOPBACK)
    for part in parts:
        if part in (".", ".."):
            return
        at = at / part
    assert place(str(at)) == at
    assert pickle.loads(pickle.dumps(at)) == at
    assert at.is_relative_to(Stored("s3", "bucket"))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/CANARY", "ftp:// is no place"),
        ("s3://CANARY:CANARY@bucket/x", "credentials"),
        ("s3://CANARY@bucket/x", "credentials"),
        ("abfs://a:CANARY@account/x", "credentials"),
        ("s3://bucket/x?access_key=CANARY&secret_key=CANARY", "credentials by the environment"),
        ("s3://bucket/x?X-Amz-Signature=CANARY", "credentials by the environment"),
        ("s3://bucket/x?CANARY", "is no URI"),
        (f"s3://bucket/x?{LOOPBACK}&endpoint_override=a:CANARY%40host", "credentials"),
        ("s3:///CANARY", "no place in a store"),
        ("s3://bucket/../CANARY", "no place in a store"),
        ("s3://bucket//CANARY", "no place in a store"),
        ("s3://[CANARY/x", "is no URI"),
        ("file://host/CANARY", "three slashes"),
        ("s3://bucket/x?endpoint_override=CANARY:9000&scheme=http", "by https"),
        ("s3://bucket/x?endpoint_override=http://CANARY:9000", "host:port"),
        ("s3://bucket/x?endpoint_override=http%3A%2F%2FCANARY:9000&scheme=https", "host:port"),
        ("s3://bucket/x?scheme=http&endpoint_override=CANARY:9000&scheme=https", "each once"),
        (f"s3://bucket/x?endpoint_override=CANARY:9000&{LOOPBACK}", "each once"),
    ],
)
def test_what_is_no_place_or_could_hold_a_secret_is_refused_unrepeated(uri: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        place(uri, what="--data")
    assert str(raised.value).startswith("--data: ")
    assert "CANARY" not in told(raised.value).replace(repr(uri), "")


def test_an_endpoint_of_the_environment_must_be_encrypted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(PlanError, match="by https"):
        place("s3://bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    place("s3://bucket/x")


def test_a_workers_environment_is_held_to_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    at = pickle.loads(pickle.dumps(place("s3://another-bucket/x")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(PlanError, match="by https"):
        at.read()


def test_places_overlap_where_one_lies_in_the_other(tmp_path: Path) -> None:
    at = Stored("s3", "bucket", "a/b")
    for other in (at, at / "c", Stored("s3", "bucket", "a"), Stored("s3", "bucket"), Stored("s3", "bucket", "a", "x")):
        assert overlap(at, other)
        assert overlap(other, at)
    for apart in (Stored("s3", "bucket", "a/bc"), Stored("s3", "other", "a/b"), tmp_path):
        assert not overlap(at, apart)


# -- objects ---------------------------------------------------------------------------------------------------------


def test_objects_are_put_listed_read_and_removed(store: Store) -> None:
    bucket = store.bucket()
    odd = bucket / "a b" / "ü?#%.bin"
    odd.write(b"12345")
    (bucket / "c").write(b"")
    assert contents(bucket) == {"a b/ü?#%.bin": b"12345", "c": b""}
    assert place(str(odd)).read() == b"12345"  # type: ignore[union-attr]
    assert (odd.is_object(), (bucket / "a b").is_object(), (bucket / "none").is_object()) == (True, False, False)
    (bucket / "a b").delete_below()
    assert contents(bucket) == {"c": b""}
    (bucket / "c").delete()
    for nothing in (bucket / "c", bucket / "never"):
        nothing.delete()
        nothing.delete_below()
        with pytest.raises(FileNotFoundError):
            nothing.read()
    assert contents(bucket) == {}


def test_the_pin_tells_a_rewrite_of_the_same_size_within_a_second(store: Store) -> None:
    at = store.bucket() / "data" / "a.csv"
    at.write(b"x\n1\n")
    before = pin(find(at))
    assert pin(find(at)) == before
    for _ in range(20):  # the store's times are whole seconds: two puts within one
        second = int(time.time())
        at.write(b"x\n1\n")
        size, modified, _ = at.fingerprint()
        at.write(b"x\n2\n")
        same = at.fingerprint()
        if int(time.time()) == second:
            break
    assert same[:2] == [size, modified]  # the broken twin: size and time alone
    assert pin(find(at)) != before


def failing(store: Store) -> dict[str, tuple[Stored, str]]:
    bucket = store.bucket()
    (bucket / "x").write(b"1")
    store.deny(bucket, "GetObject", "PutObject")
    missing = place(store.uri("no-such-bucket", "x"))
    nobody = place("s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
    assert isinstance(missing, Stored)
    assert isinstance(nobody, Stored)
    return {
        "denied": (bucket / "x", "access is denied"),
        "missing": (missing, "there"),
        "unreachable": (nobody, "cannot be reached"),
    }


@pytest.mark.parametrize("name", ["denied", "missing", "unreachable"])
def test_a_stores_failures_are_told_in_our_words(store: Store, name: str) -> None:
    at, words = failing(store)[name]
    acts: tuple[Callable[[], object], ...] = (at.read, lambda: at.write(b"1"), lambda: conditional.create(at, b"1"))
    for act in acts[:1] if name == "unreachable" else acts:  # seconds of retries each
        with pytest.raises(OSError, match=words) as raised:
            act()
        assert "AWS" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_scheme_whose_library_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PrdpError, match="Hadoop libraries"):
        find(place("hdfs://host/data"))


# -- create if absent ------------------------------------------------------------------------------------------------


def winners(at: Stored, write: Callable[[Stored, bytes], bool], writers: int = 8) -> list[bytes]:
    """Let writers meet at one object; return what those wrote who were told that they were first."""
    start, won = Barrier(writers), []

    def one(data: bytes) -> None:
        start.wait()
        if write(at, data):
            won.append(data)

    threads = [Thread(target=one, args=(str(i).encode(),)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def plain_put(at: Stored, data: bytes) -> bool:
    """The broken twin: look, then put."""
    absent = not at.is_object()
    at.write(data)
    return absent


def test_of_writers_that_meet_one_creates_the_object(store: Store) -> None:
    bucket = store.bucket()
    for i in range(10):
        at = bucket / f"{i}"
        assert winners(at, conditional.create) == [at.read()]
        assert not conditional.create(at, b"later")
        assert at.read() != b"later"
    assert any(winners(bucket / f"twin-{i}", plain_put) != [(bucket / f"twin-{i}").read()] for i in range(20))


def test_a_store_without_create_if_absent_is_refused(store: Store) -> None:
    good, bad = store.bucket(), store.bucket(UNCONDITIONAL)
    conditional.require(good / "out")
    for at, words in ((bad / "out", "in spite of If-None-Match"), (Stored("gs", "bucket", "out"), "create-if-absent")):
        with pytest.raises(StateError, match=words):
            conditional.require(at)
    assert contents(good) == contents(bad) == {}
