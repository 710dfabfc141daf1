"""A year of a family's monthly members: 2,000 releases, an upgrade of the schema and a restore, on both databases.

The clock is simulated. What is reserved goes through the ledger's own acts a few times a month; the other releases are
appended as entries, whose chain and rules `verify` checks like any.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import insert

from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger import entries, spending
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.datasets import Budget
from pipeline.ledger.entries import Act, next_entry
from pipeline.ledger.spending import spendings
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger
from pipeline.operations.ledger_health import MEND, health
from tests.support.ledgers import FACTS, UNIT, raw, reservation

MEMBERS = [f"m{month:02}" for month in range(1, 13)]
RELEASES = 2000
ACTED = 2  # of a month's releases, by the ledger's own acts
MOST_SECONDS = 1.0  # of processor time, for one question of 2,000 releases
OLD_SCHEMA = 2  # without summaries
UPGRADED, RESTORED = 6, 9  # after these months

pytestmark = pytest.mark.drill


class Clock(datetime):
    """The simulated time, moved by a second with each look."""

    today = datetime(2026, 1, 1, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        Clock.today += timedelta(seconds=1)
        return Clock.today


def wanted(name: str, member: str) -> Any:
    return reservation(name, dataset=member, source=f"/{member}", draws=RELEASES + 1)


def acted(ledger: Ledger, name: str, member: str) -> None:
    ledger.reserve(wanted(name, member))
    attempt = ledger.draw(name, "sha256:pin")
    ledger.publish(name, attempt, "sha256:contents")
    ledger.settle(name, attempt)


def appended(ledger: Ledger, names: list[str], member: str) -> None:
    seq, head = ledger.head()
    rows = []
    for name in names:
        for event, facts in (
            ("reserved", wanted(name, member).facts()),
            ("drawn", {"draw": 1, "pin": "sha256:pin"}),
            ("published", {"contents": "sha256:contents"}),
            ("settled", {}),
        ):
            entry = next_entry(seq, head, Act(event, member, name, None if event == "reserved" else "0" * 16, facts))
            rows.append(entry.columns)
            seq, head = entry.seq, entry.hash
    with ledger._writing() as connection:
        connection.execute(insert(ENTRIES), rows)


def upgraded(ledger: Ledger, address: str) -> Ledger:
    """Make the schema an older one, which this prdp refuses, and bring it up again."""
    before = ledger.head()
    with closing(raw(ledger)) as connection:
        connection.execute("DROP TABLE summaries")
        connection.execute("DROP INDEX entries_by_event")
        connection.execute(f"UPDATE meta SET schema_version = {OLD_SCHEMA}")
    with pytest.raises(StateError, match="run prdp ledger"):
        create_ledger(address)
    version, again = migrate_ledger(address)
    assert (version, again.head()) == (OLD_SCHEMA, before)
    return again


def restored(ledger: Ledger, server: Any) -> tuple[Ledger, str]:
    """Dump the ledger and put the dump back elsewhere; close it, as the documents say, and open it again."""
    if ledger.path is not None:
        copy = ledger.path.parent / "restored.sqlite"
        with closing(raw(ledger)) as connection:
            connection.execute(f"VACUUM INTO '{copy}'")
        copy.chmod(0o600)
        address = str(copy)
    else:
        dump, database = server.folder / "dump", server.database()
        server._run("pg_dump", *server._source(), "-Fc", "-f", dump, ledger._database._engine.url.database)
        server._run("pg_restore", *server._source(), "--exit-on-error", "-d", database, dump)
        address = server.url(database)
    again = create_ledger(address)
    assert again.head() == ledger.head()
    again.close("restored")
    with pytest.raises(StateError, match="closed"):
        again.reserve(wanted("while closed", "m01"))
    again.reopen([])
    return again, address


@contextmanager
def in_time(what: str) -> Iterator[None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    print(f"{what}: {took:.2f} s of processor time")
    assert took < MOST_SECONDS, what


def test_a_year_of_2000_releases_adds_up(address: str, request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (entries, spending):
        monkeypatch.setattr(module, "datetime", Clock)
    Clock.today = datetime(2026, 1, 1, tzinfo=UTC)
    anyone = Reference.of({})
    ledger = create_ledger(address)
    ledger.register(Budget(name="kin", unit="record", limits=[Limit(anyone, RELEASES * UNIT)]))
    made = 0
    for month, member in enumerate(MEMBERS, 1):
        Clock.today = datetime(2026, month, 1, tzinfo=UTC)
        limits = [Limit(anyone, RELEASES * UNIT)]
        source = f"/{member}"
        ledger.register(Budget(name=member, unit="record", limits=limits, facts=FACTS, source=source, family="kin"))
        names = [f"{member}-{number:03}" for number in range(made, RELEASES * month // 12)]
        made += len(names)
        first = ACTED if month > UPGRADED else 0  # an older build acted otherwise: it kept no summaries
        appended(ledger, names[first:], member)
        for name in names[:first]:
            acted(ledger, name, member)
        if month == UPGRADED:
            ledger = upgraded(ledger, address)
        if month == RESTORED:
            ledger, address = restored(ledger, None if ledger.path else request.getfixturevalue("postgres"))
    Clock.today = datetime(2026, 12, 31, 12, tzinfo=UTC)
    with in_time("a reservation that the family refuses"), pytest.raises(BudgetRefused):
        ledger.reserve(wanted("one too many", "m12"))
    with in_time("show"):
        rows, _ = ledger.overview()
    assert len(rows) == RELEASES
    with in_time("health"):
        findings = health(ledger, Clock.today, least_free=0)
    assert [finding for finding in findings if finding.state == MEND] == []
    (kin,) = spendings(ledger, "payroll=1", "kin")
    assert kin.total == RELEASES * UNIT == sum((loss for _, loss in kin.spent), Fraction(0))
    assert kin.left == 0
    assert {year: number for year, (number, _) in kin.years.items()} == {2026: RELEASES}
    by_member = {each.dataset: len(each.charges) for each in kin.by_member}
    assert by_member == {m: RELEASES * n // 12 - RELEASES * (n - 1) // 12 for n, m in enumerate(MEMBERS, 1)}
    entries_of = 4 * RELEASES + len(MEMBERS) + 1 + 2  # the family, its members, closed and reopened
    assert ledger.verify()[0] == entries_of
