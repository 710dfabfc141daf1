"""Signed manifests: outsiders know the author, and whatever was changed, removed or signed by others is found."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError, StateError
from pipeline.ledger.store import Ledger, open_ledger
from pipeline.publication.manifest import verify_release
from pipeline.publication.signing import create_key, load_public_key, load_signing_key
from pipeline.release import installation as site_module
from pipeline.release.publish import build_manifest, copy_to_output, require_publishable
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.ledgers import staged
from tests.support.world import records, tree, write_world

RELEASE = "small-release"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    create_key(tmp_path / "site.key")
    return tmp_path / "site.key"


def publishing(ledger: Ledger, out: Path, release: str = "r") -> Callable[[Path | None], Path]:
    """Return what copies a published attempt to `out`, signed by a key or not, and returns its folder."""
    attempt = staged(ledger, release, out)
    staging = Staging(locate(ledger.staging_root), release, attempt)
    contents = staging.read_complete()
    assert contents is not None
    state = ledger.publish(release, attempt, contents.digest)

    def copied(key: Path | None) -> Path:
        signing = None if key is None else load_signing_key(key)
        return Path(str(copy_to_output(staging, contents, locate(out), build_manifest(state, contents), signing)))

    return copied


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


# Keys


def test_a_key_is_private_never_replaced_and_shows_nothing(tmp_path: Path, key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    before = tree(tmp_path)
    for taken in (key, tmp_path / "other"):
        (tmp_path / "other.pub").write_text("somebody's")
        with pytest.raises(StateError, match="keys are not replaced"):
            create_key(taken)
    assert tree(tmp_path) == before | {"other.pub": b"somebody's"}
    assert base64.b64encode(b"secret") not in repr(load_signing_key(key)).encode()
    assert repr(load_signing_key(key)) == "SigningKey()"


def test_wrong_files_of_keys_are_told(tmp_path: Path, key: Path) -> None:
    (tmp_path / "text").write_text("no key")
    (tmp_path / "text").chmod(0o600)
    rsa = tmp_path / "p256"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", rsa], check=True)
    rsa.chmod(0o600)
    for path, told in (
        (tmp_path / "absent", "cannot be read"),
        (tmp_path / "text", "no private Ed25519"),
        (rsa, "no private Ed25519"),
    ):
        with pytest.raises(PlanError, match=told):
            load_signing_key(path)
    with pytest.raises(PlanError, match=r"private key: give the public one, .*site\.key\.pub"):
        load_public_key(key)
    with pytest.raises(PlanError, match="no Ed25519 key"):
        load_public_key(tmp_path / "text")
    for mode in (0o640, 0o604, 0o620):
        key.chmod(mode)
        with pytest.raises(PlanError, match="other users have access"):
            load_signing_key(key)


# What a signature shows


def test_a_signature_is_of_the_manifests_exact_bytes(ledger: Ledger, tmp_path: Path, key: Path) -> None:
    """By OpenSSL, which knows nothing of prdp."""
    folder = publishing(ledger, tmp_path / "out")(key)
    about = json.loads((folder / "release.json.sig").read_text())
    (tmp_path / "raw").write_bytes(base64.b64decode(about["signature"]))
    call = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public(key), "-rawin", "-sigfile", tmp_path / "raw"]
    for file, fits in (("release.json", True), ("release.json.sig", False)):
        done = subprocess.run([*call, "-in", folder / file], capture_output=True, check=False)
        assert (done.returncode == 0) == fits
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", public(key), "-outform", "DER"], capture_output=True, check=True
    )
    summed = subprocess.run(["openssl", "sha256", "-r"], input=der.stdout, capture_output=True, check=True).stdout
    assert summed.split()[0].decode() == about["key"] == prdp.verify(folder, key=public(key)).signed_by


def test_a_key_adds_its_signature_and_changes_nothing_else(ledger: Ledger, tmp_path: Path, key: Path) -> None:
    publish = publishing(ledger, tmp_path / "out")
    plain = tree(publish(None))
    assert "release.json.sig" not in plain
    signed = tree(publish(key))
    assert signed == plain | {"release.json.sig": signed["release.json.sig"]}
    assert prdp.verify(tmp_path / "out" / "r").signed_by is None


def swapped(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def extended(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def reworded(**words: str) -> Callable[[Path, Path, Path], object]:
    """Other words around a signature that is right."""

    def write(folder: Path, other: Path, new: Path) -> None:
        at = folder / "release.json.sig"
        at.write_text(json.dumps(json.loads(at.read_text()) | words, indent=2) + "\n")

    return write


def renamed(folder: Path, other: Path) -> None:
    """The signature by another key, which says that it is by the site's."""
    at = folder / "release.json.sig"
    named = json.loads(at.read_text())["key"]
    forged = json.loads(load_signing_key(other).signature((folder / "release.json").read_bytes()))
    at.write_text(json.dumps(forged | {"key": named}))


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda folder, other, new: swapped(folder / "release.json", b'"rows": 2', b'"rows": 3'), "is wrong"),
        (lambda folder, other, new: extended(folder / "release.json"), "is wrong"),
        (lambda folder, other, new: shutil.copy(other / "release.json.sig", folder), "is wrong"),
        (lambda folder, other, new: renamed(folder, new), "is wrong"),
        (
            lambda folder, other, new: (folder / "release.json.sig").write_bytes(
                load_signing_key(new).signature((folder / "release.json").read_bytes())
            ),
            "is by another key",
        ),
        (reworded(signs="product.json"), "is not what prdp writes around its signature"),
        (reworded(algorithm="none"), "is not what prdp writes"),
        (reworded(signed_by="the agency"), "is not what prdp writes"),
        (lambda folder, other, new: extended(folder / "release.json.sig"), "is not what prdp writes"),
        (lambda folder, other, new: (folder / "release.json.sig").unlink(), "is not signed"),
        (lambda folder, other, new: (folder / "release.json.sig").write_bytes(b"\xff"), "no signature of prdp"),
        (lambda folder, other, new: (folder / "release.json.sig").write_text("[]"), "no signature of prdp"),
        (lambda folder, other, new: (folder / "release.json.sig").write_text('{"key": 3}'), "no signature of prdp"),
        (
            lambda folder, other, new: swapped(folder / "release.json.sig", b'"signature": "', b'"signature": !'),
            "no signature of prdp",
        ),
    ],
)
def test_outsiders_find_what_the_site_did_not_sign(
    ledger: Ledger, tmp_path: Path, key: Path, break_it: Callable[[Path, Path, Path], object], told: str
) -> None:
    folder, other = (publishing(ledger, tmp_path / "out", name)(key) for name in ("r", "s"))
    create_key(tmp_path / "new.key")
    assert prdp.verify(folder, key=public(key)).signed_by == load_public_key(public(key)).fingerprint
    break_it(folder, other, tmp_path / "new.key")
    prdp.verify(folder)  # the files fit the manifest still: the signature alone tells
    with pytest.raises(StateError, match=told) as error:
        prdp.verify(folder, key=public(key))
    assert "\n" not in str(error.value)
    assert main(["verify", str(folder), "--key", str(public(key))]) == 5


# Crashes: tests/release/test_publish.py kills signed releases at every touch; here the key is gone or another one


def test_a_signature_that_a_crash_left_is_neither_lost_nor_replaced(ledger: Ledger, tmp_path: Path, key: Path) -> None:
    publish = publishing(ledger, tmp_path / "out")
    folder = publish(key)
    create_key(tmp_path / "new.key")
    signature = (folder / "release.json.sig").read_bytes()
    (folder / "release.json").unlink()  # as a crash after the signature leaves it
    with pytest.raises(StateError, match="run again with the site's signing key"):
        publish(None)
    with pytest.raises(StateError, match="by another key"):
        publish(tmp_path / "new.key")
    assert not (folder / "release.json").exists()
    verify_release(locate(publish(key)), load_public_key(public(key)))
    publish(None)  # a crash before the release is settled
    assert (folder / "release.json.sig").read_bytes() == signature


def test_only_what_the_ledger_published_is_signed(ledger: Ledger, tmp_path: Path, key: Path) -> None:
    publish = publishing(ledger, tmp_path / "out")
    folder = publish(None)
    swapped(folder / "release.json", b'"rows": 2', b'"rows": 3')
    with pytest.raises(StateError, match="not what is to be signed"):
        publish(key)
    assert not (folder / "release.json.sig").exists()


def test_a_signature_of_others_is_found_before_anything_is_drawn(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "out" / "r").mkdir(parents=True)
    (tmp_path / "out" / "r" / "release.json.sig").write_text("theirs")
    with pytest.raises(StateError, match=r"release\.json\.sig is there already"):
        require_publishable(locate(tmp_path / "out"), "r", locate(ledger.staging_root), None)


# Whole releases


@pytest.fixture
def signed(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The call of a release whose site signs, by a file relative to the site's own; a variable changes nothing."""
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({"signing_key": key.name, "ledger": "state/ledger.sqlite"}))
    monkeypatch.setattr(site_module, "FILE", tmp_path / "site.yaml")
    monkeypatch.setenv("PRDP_SIGNING_KEY", str(tmp_path / "nowhere"))
    assert main(["ledger", "create"]) == 0
    return ["release", str(write_world(tmp_path, records(50))), "--out", str(tmp_path / "out")]


def test_a_release_is_signed_says_so_and_takes_its_signature_back(signed: list[str], key: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / RELEASE
    assert main(signed) == 0
    before = tree(folder)
    assert main(signed) == 0
    assert tree(folder) == before
    assert main(["verify", str(folder), "--key", str(public(key))]) == 0
    page = (folder / "index.html").read_text()
    assert "--key PUBLIC" in page
    assert load_public_key(public(key)).fingerprint in page
    assert main(["ledger", "withdraw", RELEASE, "--reason", "wrong year"]) == 0
    assert not (folder / "release.json.sig").exists()


def test_without_a_readable_key_nothing_is_reserved_or_approved(signed: list[str], key: Path, tmp_path: Path) -> None:
    key.chmod(0o644)
    assert main(signed) == 2
    assert main(["ledger", "check", *signed[1:]]) == 2
    ledger = open_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    assert list(ledger.states()) == []
    assert not (tmp_path / "out").exists()
    key.chmod(0o600)
    assert main([*signed, "--hold"]) == 0
    key.chmod(0o644)
    assert main(["ledger", "approve", RELEASE]) == 2
    state = ledger.state(RELEASE)
    assert state is not None
    assert (state.status, state.approved) == ("held", False)
    key.chmod(0o600)
    assert main(["ledger", "approve", RELEASE]) == 0
    assert prdp.verify(tmp_path / "out" / RELEASE, key=public(key)).release == RELEASE


def test_without_a_key_nothing_is_signed_and_no_page_speaks_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "FILE", tmp_path / "absent.yaml")
    monkeypatch.delenv("PRDP_SIGNING_KEY", raising=False)
    plan, state = write_world(tmp_path, records(50)), str(tmp_path / "state" / "ledger.sqlite")
    assert main(["ledger", "create", state]) == 0
    assert main(["release", str(plan), "--out", str(tmp_path / "out"), "--ledger", state]) == 0
    folder = tmp_path / "out" / RELEASE
    assert not (folder / "release.json.sig").exists()
    assert "--key" not in (folder / "index.html").read_text()
    monkeypatch.setenv("PRDP_SIGNING_KEY", str(tmp_path / "absent"))
    assert main(["release", str(plan), "--out", str(tmp_path / "out"), "--ledger", state]) == 2


# Products and reconciled tables


MADE: list[tuple[str, Callable[[Path, Path], object]]] = [
    ("reconciled.json", lambda release, out: prdp.reconcile(release, out, sign=True)),
    ("product.json", lambda release, out: prdp.product(release, out, product=out.parent / "made.yaml", sign=True)),
]
PRODUCT = {
    "product": "made",
    "title": "Made",
    "levels": {"naics6": {"meaning": "Industry"}, "county": {"meaning": "County"}},
    "measures": {"jobs": {"meaning": "Jobs", "unit": "jobs"}},
    "basic": {"round": 10, "withhold_from": 50},
    "tables": [{"name": "jobs", "values": {"jobs": "establishments"}}],
}


@pytest.mark.parametrize(("name", "make"), MADE, ids=["reconciled", "product"])
def test_what_is_made_of_releases_is_signed_where_that_is_asked_for(
    name: str, make: Callable[[Path, Path], object], key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = prdp.load_plan(write_world(tmp_path, records(50))).release(ledger=prdp.create_ledger(tmp_path / "l")).path
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(PRODUCT))
    with pytest.raises(PlanError, match="there is no key"):
        make(Path(release), tmp_path / "made")
    monkeypatch.setenv("PRDP_SIGNING_KEY", str(key))
    make(Path(release), tmp_path / "made")

    def verify(of: Path | None) -> object:
        if name == "product.json":
            return prdp.verify_product(tmp_path / "made", key=of).signed_by
        return prdp.read_reconciled(tmp_path / "made").verify(key=of).signed_by

    assert (verify(None), verify(public(key))) == (None, load_public_key(public(key)).fingerprint)
    assert main(["verify", str(tmp_path / "made"), "--key", str(public(key))]) == 0
    create_key(tmp_path / "new.key")
    with pytest.raises(StateError, match="is by another key"):
        verify(public(tmp_path / "new.key"))
    extended(tmp_path / "made" / name)
    verify(None)
    with pytest.raises(StateError, match=f"{name} or the signature was changed"):
        verify(public(key))
    (tmp_path / "made" / f"{name}.sig").unlink()
    with pytest.raises(StateError, match=f"{name} is not signed"):
        verify(public(key))
    assert main(["verify", str(tmp_path / "made"), "--key", str(public(key))]) == 5


def test_an_added_file_is_not_taken_for_a_part_of_the_release(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = publishing(ledger, tmp_path / "out")(None)
    (folder / "index.html").write_text("the front page")
    (folder / ".hidden").write_text("")
    assert main(["verify", str(folder)]) == 0
    assert "index.html, the front page, is not in the manifest and was not checked" in capsys.readouterr().out
    for added in ("more.csv", "tables/more.parquet", "0123456789abcdef/more.csv"):
        (folder / added).parent.mkdir(exist_ok=True)
        (folder / added).write_text("1")
        with pytest.raises(StateError, match=f"{added} is not in the manifest: it is no part of the release"):
            prdp.verify(folder)
        (folder / added).unlink()
