"""Several processes on one ledger, on either database: budgets, locks, and who may publish."""

import fcntl
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.database import release_lock
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import UNIT, child, entries, reservation
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer

RACERS, FITS = 16, 5


@pytest.fixture
def ledger(address: str) -> Ledger:
    return create_ledger(address)


def raced(*arguments: object) -> list[str]:
    told, _ = child("ledger_child", "publish_at_once", *arguments).communicate(timeout=PATIENCE)
    return told.split()


def require_within_budget(ledger: Ledger) -> None:
    """Exactly what fits is published and paid for."""
    states = [state for state in ledger.states() if not state.refunded]
    assert sum(state.charges * UNIT for state in states) == FITS * UNIT
    assert [entry.event for entry in entries(ledger)].count("published") == FITS


def test_sixteen_processes_race_for_a_budget_that_fits_five(ledger: Ledger, address: str) -> None:
    assert raced(address, RACERS, FITS) == ["0"] * FITS + ["3"] * (RACERS - FITS)
    require_within_budget(ledger)
    ledger.verify()


def test_without_transactions_that_are_alone_the_racers_overspend(ledger: Ledger, address: str) -> None:
    raced(address, RACERS, FITS, "unguarded")
    assert [entry.event for entry in entries(ledger)].count("published") > FITS
    with pytest.raises(AssertionError):
        require_within_budget(ledger)


def test_processes_that_make_the_ledger_at_once_make_one(address: str) -> None:
    assert raced(address, 8, 3) == ["0"] * 3 + ["3"] * 5
    ledger = create_ledger(address)
    assert ledger.verify()[0] == 3 * 4
    if ledger.path is not None:
        assert {found.name for found in ledger.path.parent.iterdir()} == {ledger.path.name, "locks"}


# Locks


def test_a_lock_leaves_no_file_behind(tmp_path: Path) -> None:
    ledger = create_ledger(str(tmp_path / "ledger.sqlite"))
    with ledger.lock("r"), ledger.lock("s"):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "locks").iterdir()]
        assert modes == [0o600] * 2
    assert [*(tmp_path / "locks").iterdir()] == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening of the file and its lock its holder ends, and removes it; another may come at once."""
    flock, others, removed = fcntl.flock, ExitStack(), []

    def after_the_holder_ended(descriptor: int, how: int) -> None:
        if not removed:
            (path,) = tmp_path.iterdir()
            removed.append(path.unlink())
            if taken:
                others.enter_context(release_lock(tmp_path, "r"))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", after_the_holder_ended)
    with others:
        if taken:
            with pytest.raises(StateError, match="under way"), release_lock(tmp_path, "r"):
                pass
        else:
            with release_lock(tmp_path, "r"), pytest.raises(StateError, match="under way"), release_lock(tmp_path, "r"):
                pass
    assert [*tmp_path.iterdir()] == []


def hold_alone(folder: Path, times: int) -> None:
    """Hold the lock so many times, each time alone."""
    held = 0
    while held < times:
        with suppress(StateError), release_lock(folder / "locks", "r"):
            (folder / "alone").touch(exist_ok=False)
            (folder / "alone").unlink()
            held += 1


def test_processes_hold_a_lock_that_is_removed_again_and_again_one_at_a_time(tmp_path: Path) -> None:
    runs = [get_context("spawn").Process(target=hold_alone, args=(tmp_path, 200)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * 4


def test_one_attempt_at_a_release_at_a_time(ledger: Ledger) -> None:
    with ledger.lock("r"):
        with pytest.raises(StateError, match="another attempt at release r is under way"), ledger.lock("r"):
            pass
        with ledger.lock("s"):
            ledger.reserve(reservation("r"))
    with ledger.lock("r"):
        ledger.draw("r", "sha256:pin")
    if ledger.path is not None:
        assert stat.S_IMODE((ledger.path.parent / "locks").stat().st_mode) == 0o700


def wait_for_lock(ledger: Ledger, release: str) -> None:
    deadline = time.monotonic() + PATIENCE  # the kernel closes a killed process later
    while True:
        try:
            with ledger.lock(release):
                return
        except StateError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("leaving", ["nothing", "exec", "fork"])
def test_the_lock_dies_with_its_process_whatever_children_live_on(ledger: Ledger, address: str, leaving: str) -> None:
    holder = child("ledger_child", "hold_lock", address, "r", leaving)
    left = int(holder.stdout.readline())
    try:
        with pytest.raises(StateError, match="under way"), ledger.lock("r"):
            pass
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(timeout=PATIENCE) == -signal.SIGKILL
        wait_for_lock(ledger, "r")
        if left:
            os.kill(left, 0)  # the child does live on
    finally:
        holder.kill()
        holder.stdout.close()
        holder.wait()
        if left:
            os.kill(left, signal.SIGKILL)


# A paused process


@contextmanager
def paused(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has drawn for release r under the lock, and stands still (SIGSTOP); and its attempt."""
    process = child("ledger_child", "publish_on_cue", *arguments, stdin=subprocess.PIPE)
    try:
        attempt = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process, attempt
    finally:
        process.kill()
        process.stdout.close()
        process.stdin.close()
        process.wait()


def woken(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def take_lock_away(ledger: Ledger, address: str, postgres: PostgresServer) -> None:
    """What an operator would have to do: end the sessions of this ledger's locks, or remove its lock files."""
    if ledger.path is not None:
        for path in (ledger.path.parent / "locks").iterdir():
            path.unlink()
        return
    database = address.partition("?")[0].rpartition("/")[2]
    ended = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"  # returns once they have ended
    postgres.execute("postgres", f"{ended} WHERE datname = '{database}'")


def test_a_paused_process_keeps_its_lock(ledger: Ledger, address: str) -> None:
    with paused(address, "r") as (process, attempt):
        with pytest.raises(StateError, match="under way"), ledger.lock("r"):
            pass
        assert woken(process) == "published\n"
    assert ledger.state("r").attempt == attempt


@pytest.mark.parametrize("goes_as_far_as", ["destroyed", "drawn", "published"])
def test_a_paused_process_that_wakes_after_another_took_over_cannot_publish(
    ledger: Ledger, address: str, postgres: PostgresServer, goes_as_far_as: str
) -> None:
    with paused(address, "r") as (process, attempt):
        take_lock_away(ledger, address, postgres)
        wait_for_lock(ledger, "r")
        with ledger.lock("r"):
            ledger.destroyed("r", attempt, "incomplete", False)
            other = ledger.draw("r", "sha256:pin") if goes_as_far_as != "destroyed" else None
            if goes_as_far_as == "published":
                ledger.publish("r", other, "sha256:contents")
            told = woken(process)
        assert told != "published\n"
    state = ledger.state("r")
    assert state.attempt == other
    assert [entry.event for entry in entries(ledger)].count("published") == (goes_as_far_as == "published")
    ledger.verify()
