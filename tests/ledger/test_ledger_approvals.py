"""Approvals by two: by roles that the server knows, none of which ran the release, bound to one attempt's files."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest

from jobs.cli import main
from jobs.dags.prdp_steps import approved, release_in
from pipeline.accounting.accountant import LeftOutTest, with_left_out_test
from pipeline.base.errors import PlanError, StateError
from pipeline.ledger import fold
from pipeline.ledger.database import WRITERS
from pipeline.ledger.entries import Act, Required, next_entry
from pipeline.ledger.reading import approval_lines
from pipeline.ledger.store import Ledger, create_ledger, import_ledger, migrate_ledger
from pipeline.operations.ledger_health import require_in_chain
from pipeline.storage.paths import locate
from tests.ledger.test_ledger_roles import ROLES
from tests.support.ledgers import append, policy, raw, reservation
from tests.support.postgres import PostgresServer
from tests.support.world import records, write_world

TWO = Required(2, by_others=True)
USERS = {"q_run": "prdp_release", "q_ann": "prdp_officer", "q_bob": "prdp_officer", "q_both": "prdp_release"}
# The trigger of schema version 3, which compares no role and knows of no approvals: the twin of today's.
APPENDED_3 = f"""CREATE OR REPLACE FUNCTION prdp.entries_appended() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last record;
BEGIN
    PERFORM pg_advisory_xact_lock({WRITERS});
    SELECT seq, hash INTO last FROM prdp.entries ORDER BY seq DESC LIMIT 1;
    IF NEW.seq IS DISTINCT FROM coalesce(last.seq, 0) + 1
        OR NEW.previous IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
        RAISE EXCEPTION 'entries are appended in order' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$"""


class Ledgers:
    """One ledger, opened by several roles."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database

    def url(self, user: str) -> str:
        return self.server.url(self.database, user)

    def of(self, user: str) -> Ledger:
        return create_ledger(self.url(user)).signed("a typed name")

    def execute(self, *statements: str) -> None:
        self.server.execute(self.database, *statements)


@pytest.fixture
def at(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledgers]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    name = postgres.database()
    create_ledger(postgres.url(name))
    postgres.execute(name, ROLES.read_text())
    for user, role in USERS.items():
        postgres.execute(name, f"DROP ROLE IF EXISTS {user}", f"CREATE ROLE {user} LOGIN IN ROLE {role}")
    postgres.execute(name, "GRANT prdp_officer TO q_both")
    yield Ledgers(postgres, name)
    postgres.execute(name, *(f"REVOKE {role} FROM {user}" for user, role in USERS.items()))


def held(at: Ledgers, release: str = "r", by: str = "q_run") -> str:
    ledger = at.of(by)
    ledger.reserve(reservation(release))
    attempt = ledger.draw(release, "sha256:pin")
    ledger.hold(release, attempt, "sha256:files")
    return attempt


def test_two_roles_publish_and_neither_twice_nor_who_ran_it(at: Ledgers) -> None:
    ledgers = {user: at.of(user) for user in USERS}
    ledgers["q_ann"].require_approvals(TWO)
    attempt = held(at, by="q_both")
    ann = ledgers["q_ann"].approve("r", attempt)
    assert (ann.status, ann.approved, [each.role for each in ann.approvals]) == ("held", False, ["q_ann"])
    for user, told in (("q_ann", "q_ann approved it already"), ("q_both", "q_both ran it: only other roles")):
        with pytest.raises(StateError, match=told):
            ledgers[user].approve("r", attempt)
    with pytest.raises(StateError, match="an officer must approve it first"):
        ledgers["q_run"].publish("r", attempt, "sha256:files")
    with pytest.raises(StateError, match="no approval by q_bob"):
        ledgers["q_bob"].revoke("r", attempt)
    assert not ledgers["q_ann"].revoke("r", attempt).approvals
    assert not ledgers["q_bob"].approve("r", attempt).approved
    assert ledgers["q_ann"].approve("r", attempt).approved
    with pytest.raises(StateError, match="approved already"):
        ledgers["q_bob"].approve("r", attempt)
    assert ledgers["q_run"].publish("r", attempt, "sha256:files").status == "published"
    ledgers["q_bob"].verify()


def test_who_ran_a_test_that_stands_approves_nothing_after_another_takes_over(at: Ledgers) -> None:
    test = LeftOutTest(sigma=Fraction(1))
    wanted = reservation("r", test=test, policy=with_left_out_test(policy(), test))
    both, run = at.of("q_both"), at.of("q_run")
    both.require_approvals(TWO)
    both.reserve(wanted)
    both.test("r", "sha256:pin", 5000, 0)
    both.abort("r")
    run.reserve(wanted)
    attempt = run.draw("r", "sha256:pin")  # of the test that passed: none is drawn twice
    run.hold("r", attempt, "sha256:files")
    with pytest.raises(StateError, match="q_both ran it: only other roles"):
        both.approve("r", attempt)
    assert approval_lines(both.state("r"))[-1].endswith("other than q_both and q_run")  # type: ignore[arg-type]
    both.verify()


def test_a_role_is_text(at: Ledgers) -> None:
    """Who logs in as 77 cannot approve twice, as "77" and as 77: neither the server nor the chain takes the number."""
    at.execute('DROP ROLE IF EXISTS "77"', 'CREATE ROLE "77" LOGIN IN ROLE prdp_officer')
    try:
        one = at.of("77")
        one.require_approvals(TWO)
        attempt = held(at)
        approved = next_entry(*one.head(), Act("approved", "d", "r", attempt, {"contents": "sha256:files", "role": 77}))
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="names the role"):
            append(one, approved)
        state = one.approve("r", attempt)
        with pytest.raises(StateError, match="a role that is no text"):
            fold.step(state, replace(approved, dataset=state.dataset))
    finally:
        at.execute('REVOKE prdp_officer FROM "77"')


def test_what_is_asked_for_is_never_lowered_and_binds_what_is_reserved_later(at: Ledgers) -> None:
    before = held(at, "before")
    ann = at.of("q_ann")
    ann.require_approvals(Required(1, by_others=True))
    ann.require_approvals(TWO)
    head = ann.head()
    ann.require_approvals(TWO)
    assert ann.head() == head
    for less in (Required(1, by_others=True), Required(2)):
        with pytest.raises(StateError, match="none of which ran it: that is never lowered"):
            ann.require_approvals(less)
    assert ann.approve("before", before).approved
    at.of("q_run").reserve(reservation("after"))
    assert ann.state("after").hold  # type: ignore[union-attr]
    ann.verify()
    # An officer who goes around prdp to ask for less stops all releases, and shows.
    lower = {**Required(1, by_others=True).facts, "role": "q_ann"}
    append(ann, next_entry(*ann.head(), Act("required", "", "", None, lower)))
    for step in (lambda: at.of("q_run").reserve(reservation("next")), ann.verify):
        with pytest.raises(StateError, match="never lowered"):
            step()


def test_an_approval_is_of_one_attempt_and_its_files(at: Ledgers) -> None:
    ann = at.of("q_ann")
    ann.require_approvals(TWO)
    first, other = held(at, "r"), held(at, "other")
    ann.approve("r", first)
    (approved,) = (entry for entry in ann.entries("r") if entry.event == "approved")
    assert (approved.attempt, approved.facts["contents"]) == (first, "sha256:files")
    for attempt, facts in (
        (first, {"contents": "sha256:files"}),
        (other, {}),
        (other, {"contents": "sha256:other files"}),
    ):
        with pytest.raises(StateError):
            ann._advance("other", "approved", facts, attempt)
    assert not ann.state("other").approvals  # type: ignore[union-attr]


IN_A_FUNCTION = """CREATE FUNCTION public.as_bob(a bigint, b text, c text, d text, e text, f text, g text, h text,
    i text, j text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ INSERT INTO prdp.entries
    (seq, time, event, dataset, release, attempt, payload, salt, previous, hash)
    VALUES (a, b, c, d, e, f, g, h, i, j) $$"""


@pytest.mark.parametrize("trick", ["plainly", "by SET ROLE", "by a function of another's"])
def test_the_server_refuses_another_ones_name(at: Ledgers, trick: str) -> None:
    """Twin: the trigger of the older schema lets each of them pass."""
    ann = at.of("q_ann")
    ann.require_approvals(TWO)
    attempt = held(at)
    at.execute("GRANT q_bob TO q_ann", IN_A_FUNCTION, "ALTER FUNCTION public.as_bob OWNER TO q_bob")
    facts = {"role": "q_bob", "operator": "bob", "contents": "sha256:files"}

    def forged() -> None:
        entry = next_entry(*ann.head(), Act("approved", "d", "r", attempt, facts))
        if trick == "plainly":
            append(ann, entry)
            return
        marks = ", ".join(["%s"] * 10)
        with closing(raw(ann)) as session:
            if trick == "by SET ROLE":
                session.execute("SET ROLE q_bob")
                session.execute(f"INSERT INTO entries VALUES ({marks})", [*entry.columns.values()])
            else:
                session.execute(f"SELECT public.as_bob({marks})", [*entry.columns.values()])

    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="names the role that appends it"):
        forged()
    at.execute(APPENDED_3)
    forged()
    assert [each.role for each in ann.state("r").approvals] == ["q_bob"]  # type: ignore[union-attr]
    at.execute("DROP FUNCTION public.as_bob", "REVOKE q_bob FROM q_ann")


def test_who_goes_around_prdp_reserves_nothing_without_the_approvals(at: Ledgers) -> None:
    run = at.of("q_run")
    run.reserve(reservation("r"))
    facts = {**run.entries("r")[0].facts, "role": "q_run"}
    at.of("q_ann").require_approvals(TWO)

    def forged() -> None:
        append(run, next_entry(*run.head(), Act("reserved", "d", "forged", None, facts)))

    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="takes the approvals asked for"):
        forged()
    run.verify()
    at.execute(APPENDED_3)
    forged()
    with pytest.raises(StateError, match="does not ask for the approvals that it must"):
        run.verify()


def test_a_file_proves_nobody(at: Ledgers, tmp_path: Path) -> None:
    file = create_ledger(str(tmp_path / "ledger" / "ledger.sqlite"))
    with pytest.raises(StateError, match="is a file, where nothing proves who approves"):
        file.require_approvals(TWO)
    with pytest.raises(PlanError, match="must be by 1 to 9 roles"):
        at.of("q_ann").require_approvals(Required(0))
    at.of("q_ann").require_approvals(TWO)
    attempt = held(at)
    moved = import_ledger(at.of("q_ann").entries(), str(tmp_path / "ledger" / "moved.sqlite"))
    moved.reopen([])
    moved.verify()
    with pytest.raises(StateError, match="proves nobody's name"):
        moved.approve("r", attempt)
    with pytest.raises(StateError, match="is a file, where nothing proves who approves"):
        moved.reserve(reservation("next"))


def test_version_3_becomes_4_on_a_server_and_a_file_of_it_is_as_good(address: str) -> None:
    ledger = create_ledger(address)
    with closing(raw(ledger)) as session:
        if ledger.path is None:
            session.execute(APPENDED_3)
        session.execute("UPDATE meta SET schema_version = 3")
    if ledger.path is not None:
        create_ledger(address).reserve(reservation("r"))
        return
    with pytest.raises(StateError, match="run prdp ledger admin migrate"):
        create_ledger(address)
    assert migrate_ledger(address)[0] == 3
    create_ledger(address).require_approvals(TWO)
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="takes the approvals asked for"):
        append(ledger, next_entry(*ledger.head(), Act("reserved", "d", "r", None, {})))


def test_by_the_command_line_from_release_to_manifest(
    at: Ledgers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, folder = write_world(tmp_path, records(100)), tmp_path / "releases" / "small-release"

    def prdp(user: str, *arguments: str, code: int = 0) -> str:
        assert main([*arguments, "--ledger", at.url(user), "--operator", f"{user} typed"]) == code
        told = capsys.readouterr()
        return " ".join((told.out + told.err).split())

    def shown() -> Any:
        return json.JSONDecoder().raw_decode(prdp("q_bob", "ledger", "show", "small-release", "--json"))[0]

    told = prdp("q_ann", "ledger", "require", "--approvals", "2", "--by-others")
    assert "takes approvals by 2 roles of the ledger's server, none of which ran it" in told
    prdp("q_run", "release", str(plan))
    told = prdp("q_ann", "ledger", "approve", "small-release")
    assert "1 of 2 approvals: it stays held until 1 more role approves it, other than q_ann and q_run" in told
    assert not folder.exists()
    assert not approved(release_in(shown(), "small-release"))  # as the sensor of Airflow asks
    assert "q_ann approved it already" in prdp("q_ann", "ledger", "approve", "small-release", code=5)
    prdp("q_bob", "ledger", "approve", "small-release", "--record-only")
    assert approved(release_in(shown(), "small-release"))
    prdp("q_run", "release", str(plan))
    manifest = json.loads((folder / "release.json").read_text())
    assert [each["role"] for each in manifest["approvals"]] == ["q_ann", "q_bob"]
    assert "approved by q_ann and q_bob" in (folder / "index.html").read_text()
    assert [each["operator"] for each in shown()[0]["approvals"]["by"]] == ["q_ann typed", "q_bob typed"]
    prdp("q_bob", "ledger", "page", "--out", str(tmp_path / "officers.html"))
    assert "q_ann typed (role q_ann)" in (tmp_path / "officers.html").read_text()
    prdp("q_bob", "ledger", "verify", "--manifests")
    (folder / "release.json").write_text(json.dumps(manifest | {"approvals": manifest["approvals"][:1]}))
    with pytest.raises(StateError, match="its approvals are not those of the ledger"):
        require_in_chain(at.of("q_bob"), locate(folder))
