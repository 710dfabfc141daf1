"""Places by URI: what they name, what they refuse, and what a store's objects give and cannot give."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.errors import PlanError, PrdpError, StateError
from pipeline.microdata.source import find, pin
from pipeline.storage.local import LocalPath
from pipeline.storage.objects import StorePath
from pipeline.storage.paths import locate
from tests.support.leaks import told
from tests.support.store import UNCONDITIONAL, Store, contents

LOOPBACK = "endpoint_override=127.0.0.1:9000&scheme=http"


def test_paths_and_uris_name_places(tmp_path: Path) -> None:
    assert locate("data", folder=tmp_path) == LocalPath(tmp_path / "data")
    assert locate("../data", folder=tmp_path) == LocalPath(tmp_path.parent / "data")
    assert locate(f"file://{tmp_path}/a%20b") == LocalPath(tmp_path / "a b")
    assert locate("s3://bucket/a/b/") == locate("s3a://bucket/a/b") == StorePath("s3", "bucket", "a/b")
    assert locate(f"S3://bucket?{LOOPBACK}") == StorePath("s3", "bucket", "", LOOPBACK)
    assert locate("abfs://container@account.dfs.core.windows.net/x").key == "x"


@given(
    st.lists(st.text(st.characters(exclude_characters="/", exclude_categories=("Cs", "Cc")), min_size=1), max_size=4)
)
def test_the_uri_of_a_place_names_it_again(parts: list[str]) -> None:
    at = StorePath("s3", "bucket", "", LOOPBACK)
    for part in parts:
        if part in (".", ".."):
            return
        at = at / part
    assert locate(str(at)) == at
    assert pickle.loads(pickle.dumps(at)) == at
    assert at.is_relative_to(StorePath("s3", "bucket"))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/CANARY", "ftp:// is no location"),
        ("s3://CANARY:CANARY@bucket/x", "credentials"),
        ("s3://CANARY@bucket/x", "credentials"),
        ("abfs://a:CANARY@account/x", "credentials"),
        ("s3://bucket/x?access_key=CANARY&secret_key=CANARY", "credentials by the environment"),
        ("s3://bucket/x?X-Amz-Signature=CANARY", "credentials by the environment"),
        ("s3://bucket/x?CANARY", "is no URI"),
        (f"s3://bucket/x?{LOOPBACK}&endpoint_override=a:CANARY%40host", "credentials"),
        ("s3:///CANARY", "no location in a store"),
        ("s3://bucket/../CANARY", "no location in a store"),
        ("s3://bucket//CANARY", "no location in a store"),
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
        locate(uri, what="--data")
    assert str(raised.value).startswith("--data: ")
    assert "CANARY" not in told(raised.value).replace(repr(uri), "")


def test_an_endpoint_of_the_environment_must_be_encrypted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(PlanError, match="by https"):
        locate("s3://bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    locate("s3://bucket/x")


def test_a_workers_environment_is_held_to_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    at = pickle.loads(pickle.dumps(locate("s3://another-bucket/x")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:9000")
    with pytest.raises(PlanError, match="by https"):
        at.read()


def test_places_overlap_where_one_lies_in_the_other(tmp_path: Path) -> None:
    at = StorePath("s3", "bucket", "a/b")
    for other in (
        at,
        at / "c",
        StorePath("s3", "bucket", "a"),
        StorePath("s3", "bucket"),
        StorePath("s3", "bucket", "a", "x"),
    ):
        assert at.overlaps(other)
        assert other.overlaps(at)
    for apart in (StorePath("s3", "bucket", "a/bc"), StorePath("s3", "other", "a/b"), locate(tmp_path)):
        assert not at.overlaps(apart)


def test_objects_are_put_listed_read_and_removed(store: Store) -> None:
    bucket = store.bucket()
    odd = bucket / "a b" / "ü?#%.bin"
    odd.write(b"12345")
    (bucket / "c").write(b"")
    assert contents(bucket) == {"a b/ü?#%.bin": b"12345", "c": b""}
    assert locate(str(odd)).read() == b"12345"  # type: ignore[union-attr]
    assert (odd.is_file(), (bucket / "a b").is_file(), (bucket / "none").is_file()) == (True, False, False)
    (bucket / "a b").delete_tree()
    assert contents(bucket) == {"c": b""}
    (bucket / "c").delete()
    for nothing in (bucket / "c", bucket / "never"):
        nothing.delete()
        nothing.delete_tree()
        with pytest.raises(FileNotFoundError):
            nothing.read()
    assert contents(bucket) == {}


def test_the_pin_tells_a_rewrite_of_the_same_size_within_a_second(store: Store) -> None:
    at = store.bucket() / "data" / "a.csv"
    at.write(b"x\n1\n")
    before = pin(find(locate(at)))
    assert pin(find(locate(at))) == before
    for _ in range(20):  # the store's times are whole seconds: two puts within one
        second = int(time.time())
        at.write(b"x\n1\n")
        size, modified, _ = at.fingerprint()
        at.write(b"x\n2\n")
        same = at.fingerprint()
        if int(time.time()) == second:
            break
    assert same[:2] == [size, modified]  # the broken twin: size and time alone
    assert pin(find(locate(at))) != before


def failing(store: Store) -> dict[str, tuple[StorePath, str]]:
    bucket = store.bucket()
    (bucket / "x").write(b"1")
    store.deny(bucket, "GetObject", "PutObject")
    missing = locate(store.uri("no-such-bucket", "x"))
    nobody = locate("s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
    assert isinstance(missing, StorePath)
    assert isinstance(nobody, StorePath)
    return {
        "denied": (bucket / "x", "access is denied"),
        "missing": (missing, "there"),
        "unreachable": (nobody, "cannot be reached"),
    }


@pytest.mark.parametrize("name", ["denied", "missing", "unreachable"])
def test_a_stores_failures_are_told_in_our_words(store: Store, name: str) -> None:
    at, words = failing(store)[name]
    acts: tuple[Callable[[], object], ...] = (at.read, lambda: at.write(b"1"), lambda: at.create(b"1", ""))
    for act in acts[:1] if name == "unreachable" else acts:  # seconds of retries each
        with pytest.raises(OSError, match=words) as raised:
            act()
        assert "AWS" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_scheme_whose_library_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PrdpError, match="Hadoop libraries"):
        find(locate("hdfs://host/data"))


def winners(at: StorePath, write: Callable[[StorePath, bytes], bool], writers: int = 8) -> list[bytes]:
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


def plain_put(at: StorePath, data: bytes) -> bool:
    """The broken twin: look, then put."""
    absent = not at.is_file()
    at.write(data)
    return absent


def test_of_writers_that_meet_one_creates_the_object(store: Store) -> None:
    bucket = store.bucket()
    for i in range(10):
        at = bucket / f"{i}"
        assert winners(at, lambda at, data: at.create(data, "")) == [at.read()]
        assert not at.create(b"later", "")
        assert at.read() != b"later"
    assert any(winners(bucket / f"twin-{i}", plain_put) != [(bucket / f"twin-{i}").read()] for i in range(20))


def test_a_store_without_create_if_absent_is_refused(store: Store) -> None:
    good, bad = store.bucket(), store.bucket(UNCONDITIONAL)
    (good / "out").require_create("--out")
    for at, words in (
        (bad / "out", "in spite of If-None-Match"),
        (StorePath("gs", "bucket", "out"), "create-if-absent"),
    ):
        with pytest.raises(StateError, match=words):
            at.require_create("--out")
    assert contents(good) == contents(bad) == {}
