"""A year of a family's monthly members on one machine and its successor: 2,000 releases, on both databases.

The clock is simulated. Each month makes real releases of its member; the others are the entries of one of them again,
under other names, whose chain and rules `verify` checks like any. Meanwhile logs are rotated by the file that the
documents name, the server's certificate ends and is renewed, the disk is full and has room again, the schema is
upgraded, and the machine is replaced: its ledger is restored from a dump.
"""

import gzip
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

import prdp
from pipeline.base.errors import BudgetRefused, PrdpError, StateError
from pipeline.ledger import entries, spending
from pipeline.ledger.entries import FINGERPRINTS, SUMMARY, Act, next_entry, write
from pipeline.ledger.spending import spendings
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger, open_ledger
from pipeline.operations.ledger_health import MEND, health
from pipeline.operations.officer_page import write_officer_page
from tests.support.ledgers import raw
from tests.support.needs import program
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.tls import certificates, tls_in_front_of

MEMBERS = [f"m{month:02}" for month in range(1, 13)]
RELEASES = 2000
MADE = 2  # of a month's releases, from microdata
MOST_SECONDS = 1.0  # of processor time, for one question of 2,000 releases
OLD_SCHEMA = 2  # without summaries
FILLED, RENEWED, UPGRADED, REPLACED = 3, 5, 6, 9  # in these months
YEAR = datetime.now(UTC).year + 1  # the certificates of the simulated year are valid today
UNIT = Fraction(1, 2) + Fraction(1, 20_000)  # a count at σ = 1, and the test of records left out at σ = 100
NOBODY = "employment=0, payroll=0"  # a record that sums do not see
LIMIT = float(RELEASES * UNIT + UNIT / 2)  # a release more does not fit
DISK = 1 << 29
LOGROTATE = Path(__file__).parents[2] / "conf" / "cron" / "prdp.logrotate"

FAMILY = "unit: record\nlimits:\n  - {{at: {{employment: 0, payroll: 0}}, rho: {rho}}}\n"
DATASET = """
dataset:
  name: {member}
  path: {micro}
  record: establishment_id
  duplicates: trust
  unit: record
  bad_records: refuse
  keys: {{naics: naics, county: county}}
  measures:
    employment: {{column: employment, type: integer}}
    payroll: {{column: payroll, type: decimal, step: 1}}
"""
BUDGET = DATASET + "family: kin\nsynthetic: true\nlimits:\n  - {{at: {{employment: 0, payroll: 0}}, rho: {rho}}}\n"
PLAN = (
    "release: {release}\n"
    + DATASET
    + """
domain: {{naics: {data}/domain/naics.csv, county: {data}/domain/counties.csv, vintage: {{naics: 2022, county: 2022}}}}
queries:
  - name: establishments
    count: records
    by: [naics2, state]
    mechanism: {{kind: gaussian, sigma: 1, policy: paper}}
  - name: employees
    sum: employment
    by: [naics2, state]
    mechanism: {{kind: exponential_polylog, p: 2, d: 1.5, a: 2.718281828459046, sigma: 20, policy: tight}}
budget:
  - {{at: {{employment: 0, payroll: 0}}, rho: {rho}}}
"""
)

pytestmark = pytest.mark.drill


class Clock(datetime):
    """The simulated time, moved by a second with each look."""

    today = datetime(YEAR, 1, 1, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        Clock.today += timedelta(seconds=1)
        return Clock.today


class Machine:
    """A machine's own disk (ledger or state, log), where a small one can be mounted; plans and outputs are shared."""

    def __init__(self, folder: Path, name: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.data, self.out = folder / name, folder / "data", folder / "releases"
        self.log = self.root / "log" / "release.log"
        self.root.mkdir()
        call = ["mount", "-t", "tmpfs", "-o", f"mode=700,size={DISK}", name, str(self.root)]
        self.small = os.geteuid() == 0 and subprocess.run(call, capture_output=True, check=False).returncode == 0
        if self.small:
            stack.callback(subprocess.run, ["umount", "-l", self.root], check=True)
        self.log.parent.mkdir()
        self.log.touch(mode=0o600)
        monkeypatch.setenv("XDG_STATE_HOME", str(self.root / "state"))
        monkeypatch.setattr(socket, "gethostname", lambda: name)

    def plan(self, member: str, release: str) -> prdp.Plan:
        micro = self.data.parent / member
        if not micro.exists():
            shutil.copytree(self.data / "microdata", micro)
        file = self.data.parent / f"{release}.yaml"
        file.write_text(PLAN.format(release=release, member=member, micro=micro, data=self.data, rho=LIMIT))
        return prdp.load_plan(file)

    def register(self, ledger: prdp.Ledger, member: str, rho: float) -> None:
        file = self.data.parent / f"{member}.budget.yaml"
        text = FAMILY if member == "kin" else BUDGET
        file.write_text(text.format(member=member, micro=self.data.parent / member, rho=rho))
        ledger.register(member, file)

    def release(self, ledger: prdp.Ledger, member: str, release: str) -> None:
        made = self.plan(member, release).release(out=self.out, ledger=ledger, engine="dask")
        with self.log.open("a") as log:
            log.write(f"{Clock.today:%Y-%m-%d} {release} {made!r}\n")

    def rotate(self) -> None:
        """Let logrotate see that a month has gone by since it last looked."""
        text = LOGROTATE.read_text().replace("/srv/prdp/log", str(self.log.parent))
        conf, state = self.root / "logrotate", self.root / "logrotate.state"
        conf.write_text(text.replace("su prdp prdp", "su root root").replace("0600 prdp prdp", "0600 root root"))
        conf.chmod(0o644)
        state.touch(mode=0o600)
        before = datetime.now(UTC) - timedelta(days=40)
        state.write_text(f'logrotate state -- version 2\n"{self.log}" {before:%Y-%-m-%-d-%-H:%-M:%-S}\n')
        subprocess.run([program("logrotate"), "--state", state, conf], check=True)

    def logged(self) -> list[str]:
        """The lines of all logs, the oldest first."""
        old = sorted(self.log.parent.glob("release.log.*"), key=lambda path: -int(path.name.split(".")[2]))
        texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in old]
        return b"".join([*texts, self.log.read_bytes()]).decode().splitlines()


def repeated(ledger: Ledger, names: list[str], member: str, of: str) -> None:
    """Append the entries of a settled release under other names."""
    template = ledger.entries(of)
    seq, head = ledger.head()
    with ledger._writing() as connection:
        for name, each in product(names, template):
            facts = {key: value for key, value in each.facts.items() if key not in (SUMMARY, FINGERPRINTS)}
            entry = next_entry(seq, head, Act(each.event, member, name, each.attempt, facts))
            write(connection, entry)
            seq, head = entry.seq, entry.hash


def upgraded(ledger: Ledger, address: str, session: Any) -> Ledger:
    """Make the schema an older one, which this prdp refuses, and bring it up again."""
    before = ledger.head()
    with closing(session) as connection:
        connection.execute("DROP TABLE summaries")
        connection.execute("DROP INDEX entries_by_event")
        connection.execute(f"UPDATE meta SET schema_version = {OLD_SCHEMA}")
    with pytest.raises(StateError, match="run prdp ledger"):
        create_ledger(address)
    version, again = migrate_ledger(address)
    assert (version, again.head()) == (OLD_SCHEMA, before)
    return again


class File:
    """A ledger in a file of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.path = machine.root / "ledger" / "ledger.sqlite"
        self.address = str(self.path)

    def session(self) -> Any:
        return raw(open_ledger(self.address))

    def moved(self, machine: Machine) -> "File":
        after = File(machine)
        after.path.parent.mkdir(mode=0o700)
        with closing(self.session()) as connection:
            connection.execute(f"VACUUM INTO '{after.path}'")
        after.path.chmod(0o600)
        return after

    def renew(self, day: datetime) -> None:
        """A file needs no certificate."""


class Server:
    """A ledger on a server behind TLS, whose certificate ends on a day."""

    def __init__(self, server: PostgresServer, folder: Path, stack: ExitStack) -> None:
        self.server, self.folder, self.stack, self.database = server, folder, stack, server.database()
        self.files = [folder / f"{name}.pem" for name in ("root", "leaf", "key")]
        if not self.files[0].exists():
            self._put(certificates("localhost", datetime(YEAR, RENEWED, 10, tzinfo=UTC)))
        port = stack.enter_context(tls_in_front_of(server.port, *self.files[1:]))
        options = f"sslmode=verify-full&sslrootcert={self.files[0]}"
        self.address = f"postgresql://postgres@localhost:{port}/{self.database}?{options}"

    def session(self) -> Any:
        words = f"{self.server.conninfo(self.database)} options='-c search_path=prdp'"
        return psycopg.connect(words, autocommit=True)

    def moved(self, machine: Machine) -> "Server":
        dump = self.server.folder / "dump"
        self.server._run("pg_dump", *self.server._source(), "-Fc", "-f", dump, self.database)
        server = PostgresServer()
        self.stack.callback(server.stop)
        after = Server(server, self.folder, self.stack)
        server._run(
            "pg_restore",
            *server._source(),
            "--exit-on-error",
            "-d",
            after.database,
            server.give("d", dump.read_bytes()),
        )
        return after

    def renew(self, day: datetime) -> None:
        """A new certificate before the old one ends: first the server has it, then those who connect trust it."""
        ledger = open_ledger(self.address)
        assert {each.check for each in health(ledger, day, least_free=0) if each.state == MEND} == {"certificates"}
        root, *own = certificates("localhost", datetime(YEAR + 1, RENEWED, 10, tzinfo=UTC))
        head, old = ledger.head(), self.files[0].read_bytes()
        self._put((old, *own))
        with pytest.raises(PrdpError, match="SSL error"):
            open_ledger(self.address, wait=0.1).close("nobody knows the server")
        self._put((root, *own))
        assert open_ledger(self.address).head() == head

    def _put(self, texts: tuple[bytes, ...]) -> None:
        for file, text in zip(self.files, texts, strict=True):
            file.write_bytes(text)
            file.chmod(0o600)


def filled(machine: Machine, ledger: prdp.Ledger, member: str, release: str) -> None:
    """Fill the machine's disk: the release stops, and goes on once there is room."""
    filler = machine.root / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(machine.root).free)
    short = {each.check for each in health(ledger._store, Clock.today, least_free=0.01) if each.state == MEND}
    assert short == {"disk"}
    with pytest.raises(PrdpError, match=r"[Nn]o space|full"):
        machine.plan(member, release).release(out=machine.out, ledger=ledger, engine="dask")
    filler.unlink()
    machine.release(ledger, member, release)


def replaced(old: Machine, new: Machine, database: Any) -> tuple[Any, prdp.Ledger]:
    """Restore the ledger on another machine, closed; open it again once the outputs are there too."""
    after = database.moved(new)
    shutil.copytree(old.log.parent, new.log.parent, dirs_exist_ok=True)
    ledger = prdp.open_ledger(after.address, operator="machine-2")
    assert ledger._store.head() == open_ledger(database.address).head()
    ledger.close("restored")
    with pytest.raises(StateError, match="closed"):
        new.plan(MEMBERS[0], "while-closed").release(out=new.out, ledger=ledger, engine="dask")
    elsewhere = new.out.rename(new.out.with_name("not mounted"))
    with pytest.raises(StateError, match="stays closed"):
        ledger.reopen()
    elsewhere.rename(new.out)
    assert sorted(ledger.reopen()) == sorted(line.split()[1] for line in new.logged())
    return after, ledger


@contextmanager
def in_time(what: str) -> Iterator[None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    print(f"{what}: {took:.2f} s of processor time")
    assert took < MOST_SECONDS, what


def asked(machine: Machine, ledger: prdp.Ledger) -> None:
    """Ask what people ask, each in time, after the first reservation that follows."""
    store, another = ledger._store, machine.plan(MEMBERS[-1], "one-too-many")
    with in_time("a release that the family refuses"), pytest.raises(BudgetRefused, match="family kin"):
        another.release(out=machine.out, ledger=ledger, engine="dask")
    with in_time("whether one more fits"), pytest.raises(BudgetRefused, match="family kin"):
        another.check(out=machine.out, ledger=ledger)
    with in_time("show"):
        assert len(store.overview()[0]) == RELEASES
    with in_time("what a reference lost"):
        spendings(store, "employment=45, payroll=1000")
    with in_time("health"):
        findings = health(store, Clock.today, least_free=0)
    with in_time("the officers' page"):
        write_officer_page(store, machine.root / "page.html")
    assert [finding for finding in findings if finding.state == MEND] == []


def judged(machine: Machine, ledger: prdp.Ledger) -> None:
    """The budget is what arithmetic says, and the chain, the manifests and the logs are whole."""
    (kin,) = spendings(ledger._store, NOBODY, "kin")
    # A bound that was certified with a reservation is a decimal of 17 digits, rounded up.
    assert RELEASES * UNIT <= kin.total <= RELEASES * UNIT * (1 + Fraction(1, 2**50))
    assert kin.total == sum((loss for _, loss in kin.spent), Fraction(0))
    assert kin.left == Fraction(str(LIMIT)) - kin.total
    assert {year: number for year, (number, _) in kin.years.items()} == {YEAR: RELEASES}
    by_member = {each.dataset: len(each.charges) for each in kin.by_member}
    assert by_member == {m: RELEASES * n // 12 - RELEASES * (n - 1) // 12 for n, m in enumerate(MEMBERS, 1)}
    published = [line.split()[1] for line in machine.logged()]
    assert len(published) == MADE * len(MEMBERS) == len(set(published))
    destroyed = sum(entry.event == "destroyed" for entry in ledger._store.entries())
    assert destroyed <= 1  # the draw for which the full disk had no room
    # Of a release, its draw again, the members, their family, closed and reopened.
    entries_of = 5 * RELEASES + 2 * destroyed + len(MEMBERS) + 1 + 2
    assert ledger.verify(*(machine.out / name for name in published))["entries"] == entries_of
    assert {path.stat().st_mode & 0o777 for path in machine.log.parent.iterdir()} == {0o600}
    assert len(list(machine.log.parent.iterdir())) == len(MEMBERS) + 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_year_of_2000_releases_adds_up(
    kind: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (entries, spending):
        monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    Clock.today = datetime(YEAR, 1, 1, tzinfo=UTC)
    prdp.generate(300, out=tmp_path / "data")
    with ExitStack() as stack:
        machine = Machine(tmp_path, "machine-1", stack, monkeypatch)
        database: Any = File(machine)
        if kind == "postgresql":
            database = Server(request.getfixturevalue("postgres"), tmp_path, stack)
        ledger = prdp.create_ledger(database.address)
        machine.register(ledger, "kin", LIMIT)
        made = 0
        for month, member in enumerate(MEMBERS, 1):
            Clock.today = datetime(YEAR, month, 1, tzinfo=UTC)
            machine.register(ledger, member, LIMIT)
            names = [f"{member}-{number:03}" for number in range(made, RELEASES * month // 12)]
            made += len(names)
            for name in names[: MADE - 1]:
                machine.release(ledger, member, name)
            repeated(ledger._store, names[MADE:], member, names[0])
            if month == RENEWED:
                database.renew(Clock.today)
            if month == UPGRADED:
                upgraded(ledger._store, database.address, database.session())
                ledger = prdp.open_ledger(database.address)
            if month == REPLACED:
                machine, old = Machine(tmp_path, "machine-2", stack, monkeypatch), machine
                database, ledger = replaced(old, machine, database)
            act = filled if month == FILLED and machine.small else Machine.release
            act(machine, ledger, member, names[MADE - 1])
            machine.rotate()
        Clock.today = datetime(YEAR, 12, 31, 12, tzinfo=UTC)
        asked(machine, prdp.open_ledger(database.address))
        judged(machine, ledger)
