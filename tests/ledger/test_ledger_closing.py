"""A ledger that was restored or moved: closed until it is shown to know what was published."""

import errno
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import prdp
from jobs.cli import main
from pipeline.base.canonical import canonical_json
from pipeline.base.errors import StateError
from pipeline.ledger import store
from pipeline.ledger.entries import Act, next_entry
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from pipeline.operations.ledger_health import reopen
from pipeline.storage.paths import locate
from tests.jobs.test_cli import run_json
from tests.support.ledgers import append, drawn_and_destroyed, reservation, stage
from tests.support.postgres import PostgresServer

CLOSED = r"the ledger is closed since \d{4}-\d\d-\d\d \(restored\): nothing is reserved, drawn or published"


def published(ledger: Ledger, release: str, out: Path) -> None:
    """Publish a release, with a manifest that names the ledger's head."""
    ledger.reserve(reservation(release, out=str(out)))
    attempt = ledger.draw(release, "sha256:pin")
    head = ledger.publish(release, attempt, "sha256:contents").head
    folder = out / release
    folder.mkdir(parents=True)
    tables = [{"query": "q", "files": [{"path": "a", "sha256": "b", "bytes": 1}]}]
    facts = {"release": release, "attempt": attempt, "date": "2026-01-01", "tables": tables, "files": []}
    (folder / "release.json").write_text(json.dumps(facts | {"ledger_head": head, "plan_digest": "sha256:p"}))
    ledger.settle(release, attempt)


def test_a_closed_ledger_takes_nothing_until_it_is_opened(address: str, tmp_path: Path) -> None:
    ledger = create_ledger(address)
    published(ledger, "r", tmp_path / "out")
    ledger.reserve(reservation("reserved"))
    ledger.reserve(reservation("drawn"))
    attempt = ledger.draw("drawn", "sha256:pin")
    ledger.close("restored")
    head = ledger.head()
    for step in (
        lambda: ledger.reserve(reservation("more")),
        lambda: ledger.check(reservation("more")),
        lambda: ledger.reserve(reservation("reserved")),
        lambda: ledger.draw("reserved", "sha256:pin"),
        lambda: ledger.publish("drawn", attempt, "sha256:contents"),
        lambda: ledger.abort("reserved"),
        lambda: ledger.close("again"),
    ):
        with pytest.raises(StateError, match=CLOSED):
            step()
    assert ledger.verify() == head
    assert reopen(ledger, []) == ["r"]
    ledger.publish("drawn", attempt, "sha256:contents")
    with pytest.raises(StateError, match="the ledger is open"):
        ledger.reopen([])
    ledger.verify()


def test_entries_after_a_closing_one_break_the_chain(address: str) -> None:
    """Whoever goes around prdp is found."""
    ledger = create_ledger(address)
    ledger.reserve(reservation("r"))
    ledger.close("restored by hand")
    with pytest.raises(StateError, match=r"\(restored by hand\): nothing"):
        ledger.reserve(reservation("s"))
    append(ledger, next_entry(*ledger.head(), Act("aborted", "d", "r", None, {})))
    with pytest.raises(StateError, match=r"breaks its own rules at entry 3: the ledger is closed"):
        ledger.verify()


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[tuple[Ledger, Path]]:
    """A ledger file that was put back from a copy, and closed; since the copy a release was made elsewhere."""
    path, out = tmp_path / "state" / "ledger.sqlite", tmp_path / "out"
    ledger = create_ledger(str(path))
    published(ledger, "r", out)
    shutil.copy(path, tmp_path / "copy.sqlite")
    yield ledger, out
    ledger.verify()


def put_back(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    path.unlink()
    shutil.copy(tmp_path / "copy.sqlite", path)
    path.chmod(0o600)
    ledger.close("restored")


def test_a_ledger_that_forgot_a_release_stays_closed(restored: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, _ = restored
    published(ledger, "s", tmp_path / "elsewhere")
    put_back(ledger, tmp_path)
    with pytest.raises(StateError, match=r"elsewhere/s: the ledger has no entry with the head .* has forgotten"):
        reopen(ledger, [locate(tmp_path / "elsewhere")])
    with pytest.raises(StateError, match=r"elsewhere/s: the ledger has no entry"):  # the release's own folder
        reopen(ledger, [locate(tmp_path / "elsewhere" / "s")])
    with pytest.raises(StateError, match=CLOSED):
        ledger.reserve(reservation("t"))
    # The twin: of an output that nobody names nothing is known.
    assert reopen(ledger, []) == ["r"]


def test_a_ledger_that_forgot_a_draw_stays_closed(restored: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, _ = restored
    ledger.reserve(reservation("s"))
    attempt = ledger.draw("s", "sha256:pin")
    stage(ledger, "s", attempt)
    put_back(ledger, tmp_path)
    with pytest.raises(StateError, match=f"s/{attempt}: the ledger does not know this attempt"):
        reopen(ledger, [])


def test_a_ledger_that_forgot_a_withdrawal_or_finds_nothing_stays_closed(
    restored: tuple[Ledger, Path], tmp_path: Path
) -> None:
    ledger, out = restored
    ledger.close("restored")
    note = out / "old" / "withdrawn.json"
    note.parent.mkdir()
    note.write_text(json.dumps({"release": "old", "ledger_head": "0" * 64}))
    with pytest.raises(StateError, match="old: the ledger has no entry with the head 0000"):
        reopen(ledger, [])
    shutil.rmtree(out)
    with pytest.raises(StateError, match="out: nothing is there, though r was published there"):
        reopen(ledger, [])
    new = create_ledger(str(tmp_path / "new" / "ledger.sqlite"))
    new.close("restored")
    with pytest.raises(StateError, match="no published release was found: name the folders"):
        reopen(new, [])
    with pytest.raises(StateError, match="nowhere': no release is there"):
        reopen(new, [locate(tmp_path / "nowhere")])
    assert reopen(new, [locate(tmp_path)]) == []  # nothing was published by its chain, so any place may be looked at


def test_a_ledger_is_opened_only_where_its_outputs_can_be_seen(
    restored: tuple[Ledger, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output that is not mounted, or may not be read, could hold what the ledger forgot."""
    ledger, out = restored
    ledger.close("restored")

    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", denied)
        with pytest.raises(StateError, match="out: cannot be looked at: Permission denied"):
            reopen(ledger, [])
    out.rename(tmp_path / "moved")
    with pytest.raises(StateError, match="out: nothing is there, though r was published there"):
        reopen(ledger, [])
    with pytest.raises(StateError, match=f"out='{tmp_path}': no release is there"):
        reopen(ledger, [locate(tmp_path)])
    assert reopen(ledger, [locate(tmp_path / "moved")]) == ["r"]


def test_the_commands_close_and_open(
    restored: tuple[Ledger, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, out = restored
    at = ["--ledger", ledger.address]
    assert run_json(capsys, "ledger", "close", "--reason", "restored", *at) == {"closed": True, "found": []}
    (closed,) = (told for told in run_json(capsys, "ledger", "show", *at) if told["state"] == "closed")
    assert closed["reason"] == "restored"
    assert main(["ledger", "show", *at]) == 0
    assert "restored; prdp ledger admin reopen --ledger" in capsys.readouterr().out
    told = run_json(capsys, "ledger", "reopen", "--out", out, *at)
    assert told == {"closed": False, "found": ["r"]}
    assert main(["ledger", "reopen", *at]) == 5


def test_an_exported_chain_becomes_a_ledger_elsewhere(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its identity, its charges and its limits; the old one is closed first, and stays so."""
    old = create_ledger(str(tmp_path / "old" / "ledger.sqlite"))
    published(old, "r", tmp_path / "out")
    old.reserve(reservation("s", draws=5))
    drawn_and_destroyed(old, "s", 3)
    old.draw("s", "sha256:pin")
    old.close("moved")
    assert main(["ledger", "export", "--confidential", "--ledger", old.address]) == 0
    file = tmp_path / "entries.jsonl"
    file.write_text(capsys.readouterr().out)
    told = run_json(capsys, "ledger", "import", file, address)
    assert (told["entries"], told["head"], told["closed"]) == (*old.head(), True)
    new = open_ledger(address)
    assert (new.verify(), new.identity(), new.states()) == (old.verify(), old.identity(), old.states())
    assert new.entries() == old.entries()
    assert main(["ledger", "import", str(file), str(tmp_path / "again.sqlite")]) == 0
    assert f"prdp ledger admin reopen --ledger {tmp_path}/again.sqlite\n" in capsys.readouterr().out
    assert prdp.open_ledger(address).reopen() == ["r"]
    with pytest.raises(prdp.BudgetRefused, match="spent 10 by r 2, s 8"):
        new.reserve(reservation("t", draws=5))
    with pytest.raises(StateError, match="closed"):
        old.reserve(reservation("t", draws=50))
    with pytest.raises(StateError, match="has entries already"):
        prdp.import_ledger(file, address)


def test_an_import_that_is_killed_midway_leaves_no_ledger(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made and is empty would be open: everything could be spent again."""
    old = create_ledger(str(tmp_path / "old.sqlite"))
    old.reserve(reservation("r"))

    def killed(*of: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        store.import_ledger(old.entries(), address)
    monkeypatch.undo()
    with pytest.raises(StateError, match=r"is not there|holds no prdp ledger"):
        open_ledger(address)
    assert store.import_ledger(old.entries(), address).closed() is not None


NO_ENTRIES = ("no JSON", "not confidential", "a number's type", "a text's type")


@pytest.mark.parametrize("spoil", ["an entry", "a column", "a hash", "the order", "all entries", *NO_ENTRIES])
def test_what_is_no_whole_chain_is_not_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str) -> None:
    old = create_ledger(str(tmp_path / "old" / "ledger.sqlite"))
    published(old, "r", tmp_path / "out")
    lines: list[Any] = [entry.exported(confidential=spoil != "not confidential") for entry in old.entries()]
    if spoil == "an entry":
        del lines[1]
    elif spoil == "a column":
        lines[0]["dataset"] = "other"
    elif spoil == "a hash":
        lines[-1]["hash"] = "f" * 64
    elif spoil == "the order":
        lines.reverse()
    elif spoil == "all entries":
        lines.clear()
    elif spoil.endswith("type"):  # whoever writes a chain anew can link what a database would not keep as it is
        column, value = ("seq", True) if spoil == "a number's type" else ("time", None)
        lines[0][column], previous = value, lines[0]["previous"]
        for line in lines:
            columns = {key: line[key] for key in ("seq", "time", "event", "dataset", "attempt", "payload", "salt")}
            columns |= {"release": line["release"] or "", "previous": previous}
            previous = hashlib.sha256(canonical_json(columns).encode()).hexdigest()
            line |= {"previous": columns["previous"], "hash": previous}
    file = tmp_path / "entries.jsonl"
    file.write_text("{" if spoil == "no JSON" else "\n".join(map(json.dumps, lines)))
    new = tmp_path / "new" / "ledger.sqlite"
    code = main(["ledger", "import", str(file), str(new)])
    assert code == (2 if spoil in NO_ENTRIES else 5)
    assert capsys.readouterr().err.count("\n") <= 2
    assert not new.exists()


def test_an_export_of_an_open_ledger_is_imported_closed(tmp_path: Path) -> None:
    old = create_ledger(str(tmp_path / "old" / "ledger.sqlite"))
    published(old, "r", tmp_path / "out")
    file = tmp_path / "entries.jsonl"
    file.write_text("\n".join(json.dumps(entry.exported(True)) for entry in old.entries()))
    new = prdp.import_ledger(file, tmp_path / "new" / "ledger.sqlite")
    assert [entry["event"] for entry in new.entries()][-2:] == ["settled", "closed"]
    with closing(sqlite3.connect(new.address)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (5,)


def archiving(folder: Path) -> PostgresServer:
    """A server whose log others may follow, and that keeps it in `folder`."""
    return PostgresServer(wal_level="replica", archive_mode="on", archive_command=f"cp %p {folder}/%f")


@pytest.mark.drill
def test_a_server_recovered_to_a_point_in_time_stays_closed_where_it_forgot_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        server = archiving(Path(folder))
        try:
            ledger = create_ledger(server.url("postgres"))
            published(ledger, "r", tmp_path / "out")
            backup = server.backup()
            server.execute("postgres", "SELECT pg_create_restore_point('before')")
            published(ledger, "s", tmp_path / "out")
            server.execute("postgres", "SELECT pg_switch_wal()", "CHECKPOINT")
            server.crash()
            # The last segment that the crashed server had, where the archive lacks it.
            command = f"cp {folder}/%f %p || cp {server.data}/pg_wal/%f %p"
            for target, forgot in (({"recovery_target_name": "before"}, True), ({}, False)):
                recovered = server.restored(backup, restore_command=command, **target)
                try:
                    again = open_ledger(recovered.url("postgres"))
                    again.close("restored")
                    if forgot:
                        with pytest.raises(StateError, match="out/s: the ledger has no entry with the head"):
                            reopen(again, [])
                    else:
                        assert reopen(again, []) == ["r", "s"]
                        again.reserve(reservation("t"))
                finally:
                    recovered.stop()
        finally:
            server.stop()


@pytest.mark.drill
def test_a_standby_shows_and_takes_over_with_the_same_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of docs/ledger.md: a synchronous standby for readers, which is promoted and then checked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first = archiving(Path("/dev/null"))
    try:
        ledger = create_ledger(first.url("postgres"))
        published(ledger, "r", tmp_path / "out")
        standby = first.standby()
        try:
            first.execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            published(ledger, "s", tmp_path / "out")
            reader = open_ledger(standby.url("postgres"))
            assert reader.verify()[0] == 8
            with pytest.raises(StateError, match="is read-only: give the address of the server that takes writes"):
                reader.reserve(reservation("t"))
            first.crash()
            standby.execute("postgres", "SELECT pg_promote()", "ALTER SYSTEM SET synchronous_standby_names = ''")
            standby.execute("postgres", "SELECT pg_reload_conf()")
            reader.close("a standby took over")
            assert reopen(reader, []) == ["r", "s"]
            reader.reserve(reservation("t"))
            assert reader.identity() == reader.entries()[0].hash
        finally:
            standby.stop()
    finally:
        first.stop()
