"""How a PostgreSQL ledger is named and reached: passwords are not told, and beyond this machine it is verified."""

from pathlib import Path

import pytest

from pipeline.base.errors import PlanError, PrdpError, StateError
from pipeline.ledger.database.server import server_url, shown
from pipeline.ledger.store import create_ledger
from pipeline.storage.paths import locate
from tests.support.ledgers import reservation
from tests.support.postgres import OWNER, PASSWORD, PostgresServer
from tests.support.submit import Place, submit
from tests.support.tls import certificates, tls_in_front_of
from tests.support.world import records, write_world

HOST = "ledger.test"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGPASSWORD", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:secret@db.example:5433/ledger?sslmode=verify-full", "postgresql://me@db.example:5433/ledger"),
        ("postgresql+psycopg://me:s%40cret@127.0.0.1/ledger", "postgresql://me@127.0.0.1/ledger"),
        ("postgresql:///ledger?host=/run/pg&sslpassword=secret", "postgresql:///ledger?host=%2Frun%2Fpg"),
        ("postgresql:///l?host=/run/pg,localhost&port=1", "postgresql:///l?host=%2Frun%2Fpg,localhost&port=1"),
        ("postgresql://me@[fe80::1%25eth0]/ledger?service=a", "postgresql://me@[fe80::1%25eth0]/ledger?service=a"),
        ("postgresql://a%20b:secret@[::1]:5,localhost/l%2Fr", "postgresql://a%20b@[::1]:5,localhost/l%2Fr"),
    ],
)
def test_an_address_is_told_without_its_password_and_options(url: str, told: str) -> None:
    assert shown(server_url(url)) == told
    assert shown(server_url(told)) == told


REMOTE = "postgresql://me:secret@db.example/ledger"


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        *((f"{REMOTE}?sslmode={mode}", {}) for mode in ("disable", "allow", "prefer", "require", "verify-ca")),
        ("postgresql://me:secret@localhost,db.example/ledger?sslmode=require", {}),
        ("postgresql://me:secret@/ledger?host=localhost:1&host=db.example:2&sslmode=require", {}),
        ("postgresql://me:secret@localhost/ledger?hostaddr=192.0.2.7&sslmode=require", {}),
        ("postgresql://me:secret@/ledger?sslmode=require", {"PGHOST": "db.example"}),
        ("postgresql://me:secret@localhost/ledger?sslmode=prefer", {"PGHOSTADDR": "192.0.2.7"}),
        ("postgresql://me:secret@localhost/ledger?sslmode=prefer", {"PGSERVICE": "elsewhere"}),
        ("postgresql://me:secret@localhost/ledger?sslmode=prefer&service=elsewhere", {}),
    ],
)
def test_a_server_beyond_this_machine_must_be_verified(
    url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match="sslmode=verify-full") as error:
        create_ledger(url)
    assert "secret" not in str(error.value)


def test_verification_is_the_default_there_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert server_url(REMOTE)["sslmode"] == "verify-full"
    for local in ("localhost", "127.0.0.1", "[::1]", ""):
        assert "sslmode" not in server_url(f"postgresql://me@{local}/ledger")


AMBIGUOUS = ("/secret", "1/secret", "secret@secret", "1@secret", "1?secret", "%secret", "1 secret")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:secret@host:port/ledger", "not of the form"),
        ("postgresql://me:secret@localhost", "name the database"),
        ("postgresql://localhost/ledger?password=secret", "PGPASSWORD or a passfile"),
        ("postgresql://me:secret@localhost/ledger?secret=1", "options"),
        ("postgresql://me@localhost/?dbname=", "name the database"),
        *((f"postgresql://me:{password}@localhost/ledger", "percent-encoded") for password in AMBIGUOUS),
        ("postgresql://me:secret@localhost/ledger\0?sslmode=disable", "not of the form"),
        ("postgresql://me:secret@localhost:\u0661/ledger", "not of the form"),
        ("postgresql://me:secret@localhost:1/ledger", "cannot be opened: connection failed"),
    ],
)
def test_a_wrong_address_is_told_in_one_line_without_its_password(url: str, told: str) -> None:
    with pytest.raises(PrdpError, match=told) as error:
        create_ledger(url, wait=0.1)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_password_opens_the_ledger_by_environment_passfile_or_address(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = f"127.0.0.1:{postgres.port}/{postgres.database()}"
    assert create_ledger(f"postgresql://{OWNER}:{PASSWORD}@{at}").verify()[0] == 0
    for wrong in (f"postgresql://{OWNER}:wrong-{PASSWORD}@{at}", f"postgresql://{OWNER}@{at}"):
        with pytest.raises(StateError, match="password") as error:
            create_ledger(wrong)
        assert PASSWORD not in str(error.value)
    passfile = tmp_path / "passfile"
    passfile.write_text(f"*:*:*:*:{PASSWORD}\n")
    passfile.chmod(0o600)
    create_ledger(f"postgresql://{OWNER}@{at}?passfile={passfile}")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    create_ledger(f"postgresql://{OWNER}@{at}")


def test_a_verified_server_is_used_and_no_other(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real handshakes with a server of another name than this machine's, on loopback by `hostaddr`."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    root, other = tmp_path / "root.pem", tmp_path / "other.pem"
    texts = certificates(HOST)
    for path, text in zip((root, tmp_path / "leaf.pem", tmp_path / "key.pem"), texts, strict=True):
        path.write_bytes(text)
    other.write_bytes(certificates(HOST)[0])
    at = f"/{postgres.database()}?hostaddr=127.0.0.1&sslrootcert="
    with tls_in_front_of(postgres.port, tmp_path / "leaf.pem", tmp_path / "key.pem") as port:
        assert create_ledger(f"postgresql://{OWNER}@{HOST}:{port}{at}{root}").verify()[0] == 0
        for address, told in (
            (f"{HOST}:{postgres.port}{at}{root}", "does not support SSL"),
            (f"{HOST}:{port}{at}{other}", "SSL error"),
            (f"other.test:{port}{at}{root}", "does not match host name"),
        ):
            with pytest.raises(StateError, match=told) as error:
                create_ledger(f"postgresql://{OWNER}@{address}")
            assert PASSWORD not in str(error.value)
        # A service may hide another host behind no name at all: its server is verified, whatever the service says.
        service = f"[remote]\nhost={HOST}\nhostaddr=127.0.0.1\nport={port}\nsslmode=disable\nsslrootcert="
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        (tmp_path / "services").write_text(f"{service}{root}\n")
        assert create_ledger(f"postgresql://{OWNER}@{at.partition('?')[0]}?service=remote").verify()[0] == 0
        (tmp_path / "services").write_text(f"{service}{other}\n")
        with pytest.raises(StateError, match="SSL error"):
            create_ledger(f"postgresql://{OWNER}@/postgres?service=remote")


def test_a_password_is_changed_while_a_release_runs(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step reads the passfile anew; a step with an old password is told, and writes nothing."""
    database, passfile = postgres.database(), tmp_path / "passfile"
    postgres.execute(database, "DROP ROLE IF EXISTS rotated", "CREATE ROLE rotated LOGIN SUPERUSER PASSWORD 'one'")
    monkeypatch.setenv("PGPASSFILE", str(passfile))

    def keep(password: str) -> None:
        passfile.write_text(f"*:*:*:*:{password}")
        passfile.chmod(0o600)

    keep("one")
    ledger = create_ledger(f"postgresql://rotated@127.0.0.1:{postgres.port}/{database}", wait=0.1)
    with ledger.lock("r"):
        ledger.reserve(reservation("r"))
        postgres.execute(database, "ALTER ROLE rotated PASSWORD 'two'")
        with pytest.raises(StateError, match="password authentication failed"):
            ledger.draw("r", "sha256:pin")
        keep("two")
        ledger.draw("r", "sha256:pin")


def test_attempts_are_staged_in_the_users_state_directory_and_that_is_recorded(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.url(postgres.database())
    place = Place(write_world(tmp_path, records(50)), tmp_path, address=url)
    ledger = place.ledger()
    root = ledger.staging_root
    assert root.parent == tmp_path / "prdp" / "staging"
    assert root != create_ledger(postgres.url(postgres.database())).staging_root
    assert root == create_ledger(url.replace("postgresql:", "postgresql+psycopg:")).staging_root
    submit(place)
    state = ledger.state("small-release")
    assert state.stagings == (str(root),)
    assert state.reservation["staging"] == str(root)
    assert locate(str(root), what="staging").as_path() == root
