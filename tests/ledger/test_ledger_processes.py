"""Several processes on one ledger, on either database: budgets, locks, and who may publish."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.errors import StateError
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import UNIT, child, entries, reservation
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer

RACERS, FITS = 16, 5


@pytest.fixture
def ledger(address: str) -> Ledger:
    return create_ledger(address)


def raced(*arguments: object) -> list[str]:
    told, _ = child("publish_at_once", *arguments).communicate(timeout=PATIENCE)
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


def test_one_attempt_at_a_release_at_a_time(ledger: Ledger) -> None:
    with ledger.lock("r"):
        with pytest.raises(StateError, match="another attempt at release r is under way"), ledger.lock("r"):
            pass
        with ledger.lock("s"):
            ledger.reserve(reservation("r"))
    with ledger.lock("r"):
        ledger.draw("r", "sha256:pin")
    if ledger.path is not None:
        folder = ledger.path.parent / "locks"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


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
    holder = child("hold_lock", address, "r", leaving)
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
    process = child("publish_on_cue", *arguments, stdin=subprocess.PIPE)
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
    postgres.execute("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")


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
