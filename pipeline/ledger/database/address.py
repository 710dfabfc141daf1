"""Where a ledger lies: the address that a command names, and the ledger in one SQLite file.

Of the file: where it may lie, how it is made, opened and protected, and its errors in plain words. File systems of a
network do not reliably keep SQLite's locks, and two writers ruin the file.
"""

import fcntl
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from urllib.parse import quote

import platformdirs

from pipeline.base.errors import PlanError, StateError, arg, file_errors, nearest, require_package
from pipeline.ledger.database import BUSY, REFUSED, Connection, Database, Fill, create, kept_from_children, release_lock
from pipeline.storage.local import LocalPath, sync_folder
from pipeline.storage.paths import PUBLIC_MARKS, require_not_in

_MOUNTS = Path("/proc/self/mountinfo")

# Linux's names. Others are taken for local, unknown ones too, and so are all where there is no list of mounts.
_OF_A_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs"}
    | {"prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
)
_OF_A_NETWORK_BY_FUSE = frozenset(
    {"afp", "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cifs", "curlftpfs", "davfs", "davfs2", "gcsfuse"}
    | {"glusterfs", "goofys", "juicefs", "mfs", "moosefs", "mount-s3", "nfs", "rclone", "s3fs", "seaweedfs", "smb"}
    | {"smbnetfs", "sshfs", "vmhgfs-fuse"}
)


def require_local(path: Path, mounts: str | None = None) -> None:
    """Raise StateError where `path`, absolute and without links, lies on a file system of a network.

    `mounts` is the text of proc(5)'s mountinfo; None: that of this process.
    """
    kind = kind_of(path, _read() if mounts is None else mounts)
    if kind is not None and of_a_network(kind):
        raise StateError(
            f"the ledger {path} would lie on a network file system ({kind}), whose locks do not keep a budget: put "
            "it on a local disk, or use a PostgreSQL server"
        )


def require_one_name(path: Path, mounts: str | None = None) -> None:
    """Raise StateError where the ledger's file, or a journal of it, has a second name; `mounts` as above.

    SQLite finds the journal of a crashed commit by the name of the file: under another name the file would be read
    with half a commit in it, and could forget losses. A link to the file is resolved before, a folder that is mounted
    twice holds the journals too: neither is a second name of the file alone.
    """
    points = {point for point, _ in _mounted(_read() if mounts is None else mounts)}
    for file in (path, *journals_of(path)):
        what = "the ledger" if file == path else "the ledger's journal"
        if file in points:
            raise StateError(
                f"{what} {file} is mounted alone, so that its journal has another name elsewhere: mount the folder "
                "that holds the ledger"
            )
        try:
            facts = file.lstat()
        except FileNotFoundError:
            continue
        if facts.st_nlink > 1 or stat.S_ISLNK(facts.st_mode):
            raise StateError(
                f"{what} {file} has a second name, by a link, under which a crash would be forgotten: stop all runs, "
                "then keep one name alone: the one beside which a journal lies, if there is one"
            )


def journals_of(path: Path) -> tuple[Path, ...]:
    """Return the files that SQLite keeps beside a database, which must never meet another one."""
    return tuple(path.with_name(f"{path.name}-{end}") for end in ("journal", "wal", "shm"))


def kind_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `path` by the list of `mounts`; None where that has none."""
    holding = [(len(point.parts), kind) for point, kind in _mounted(mounts) if path.is_relative_to(point)]
    # The deepest counts, and of those at one point the last, which hides the others.
    return max(reversed(holding), key=lambda mount: mount[0], default=(0, None))[1]


@lru_cache(maxsize=1)  # each transaction reads the list again, and takes it apart where it has changed
def _mounted(mounts: str) -> tuple[tuple[Path, str], ...]:
    points = []
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.partition(" ")[0]
        if len(fields) >= 6 and kind:
            points.append((Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])), kind))
    return tuple(points)


def of_a_network(kind: str) -> bool:
    """Return whether files of a file system of this type lie behind a network, or on another machine's system."""
    family, _, helper = kind.partition(".")
    return family in _OF_A_NETWORK or (family in ("fuse", "fuseblk") and helper in _OF_A_NETWORK_BY_FUSE)


def _read() -> str:
    try:
        return _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


_SHUT = "cannot be opened: check the file's and its folder's permissions"
_PLAIN = {
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), BUSY),
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable for you alone",
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM), _SHUT),
    sqlite3.SQLITE_FULL: "cannot be written, the disk is full: make room and try again",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk is full or faulty: check it and try again",
    sqlite3.SQLITE_NOTADB: "is no SQLite database: check the path, or restore the file from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore the file from a backup",
    sqlite3.SQLITE_CONSTRAINT: REFUSED,
}


class SqliteDatabase(Database):
    """The ledger in one file; locks and staging lie beside it."""

    def __init__(self, path: Path, wait: float) -> None:
        self.name = str(path)
        self._path = path
        self._wait = wait

    @property
    def path(self) -> Path:
        return self._path

    @property
    def staging_root(self) -> Path:
        return self._path.parent / "staging"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with _plain_errors(self._path), _transaction(self._path, self._wait, "DEFERRED") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with _plain_errors(self._path), _transaction(self._path, self._wait, "IMMEDIATE") as connection:
            yield connection

    def lock(self, release: str) -> AbstractContextManager[None]:
        return release_lock(self._path.parent / "locks", release)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        raise StateError(f"the ledger {path} {_PLAIN.get(code, f'cannot be used: {error}')}") from None


def open_file(path: Path, wait: float, make: bool, fill: Fill = bool) -> SqliteDatabase:
    """Return the ledger file at `path`; with `make`, made (0600, in a folder of mode 0700) and filled where absent.

    Raises StateError where group or others can write the file or its folder, on a network file system, where the file
    is no ledger, with `make` in a folder that prdp marked as public, and without `make` where there is none.
    """
    require_local(path)
    with _plain_errors(path), file_errors(f"the ledger {path} cannot be opened: "):
        if path.is_dir():
            raise StateError(f"the ledger {path} is a folder: name a file in a folder that is yours alone")
        if make:
            require_not_in(PUBLIC_MARKS, path, "the ledger")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not path.exists():
            raise _absent(path)
        _refuse_shared(path.parent)
        if not path.exists():
            _make(path, wait, fill)
        _refuse_shared(path)
    database = SqliteDatabase(path, wait)
    with database.reading() as connection:
        if connection.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'") is None:
            raise StateError(f"{path} is no prdp ledger: check the path, or restore the file from a backup")
    return database


def _absent(path: Path) -> StateError:
    """Return the error where no file is at `path`; it names the file of that folder that may have been meant."""
    names = [file.name for file in path.parent.glob("[!.]*") if file.is_file()] if path.parent.is_dir() else []
    name = nearest(path.name, names)
    meant = f"; nearest file in that folder: {name}" if name else ""
    return StateError(
        f"the ledger {path} is not there{meant}: correct the address; prdp ledger create makes a site's first one"
    )


def _refuse_shared(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        for_all = mode & stat.S_ISVTX  # a folder such as /tmp, which is to stay so
        advice = "name a file in a folder that is yours alone" if for_all else "run chmod go-w on it"
        raise StateError(f"{path} can be written by others, who could rewrite the ledger: {advice}")


def _make(path: Path, wait: float, fill: Fill) -> None:
    # Made under another name and renamed when complete: an empty or half-made file is never taken for a new ledger.
    # A link would not replace one that another process made first, but leaves two names when it is killed.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    os.close(handle)
    try:
        with _transaction(Path(name), wait, "IMMEDIATE") as connection:
            create(connection, fill)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with kept_from_children(folder, partial(os.close, folder)):
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not os.path.lexists(path):  # else another process was first
                os.rename(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def _transaction(path: Path, wait: float, kind: str) -> Iterator[Connection]:
    """Begin a transaction, on a connection that no other shares, nor a fork inherits; it commits at the block's end."""
    require_one_name(path)  # each time: a name may be added while a run goes on
    # mode=rw never makes a file; isolation_level=None leaves BEGIN to us.
    address = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None)) as driver:
        # One file that can be copied and backed up alone, and few writes: the rollback journal, not WAL. With it
        # only EXTRA also makes the journal's removal durable; after FULL a power cut could undo a commit.
        driver.execute("PRAGMA journal_mode = DELETE")
        driver.execute("PRAGMA synchronous = EXTRA")
        driver.execute(f"BEGIN {kind}")
        with driver, closing(Connection(driver, "sqlite")) as connection:
            yield connection


_SERVER = ("postgresql", "postgresql+psycopg")


def in_a_file(url: str | None) -> bool:
    """Return whether the ledger at `url` would be a file of the machine that opens it."""
    return url is None or "://" not in url or url.startswith("sqlite:")


def database_at(url: str | None, wait: float, make: bool, fill: Fill = bool) -> Database:
    """Return the ledger's database at `url`, of whatever version; with `make`, made and filled where it is absent."""
    if _scheme(url) in _SERVER:
        require_package("psycopg", "a ledger on PostgreSQL")  # loaded only where it is used
        from pipeline.ledger.database.postgres import open_server  # noqa: PLC0415

        return open_server(str(url), wait, make, fill)
    return open_file(LocalPath(_path(url).absolute()).resolve("the ledger").path, wait, make, fill)


def connection_files(url: str | None) -> Mapping[str, Path]:
    """Return the files that a connection to the ledger at `url` reads, by the names of its settings; connects not."""
    if _scheme(url) not in _SERVER:
        return {}
    require_package("psycopg", "a ledger on PostgreSQL")
    from pipeline.ledger.database import server as server_address  # noqa: PLC0415

    return server_address.connection_files(server_address.server_url(str(url)))


def own_file() -> Path:
    """Return where a user's own ledger lies, whether it is there or not; PlanError for a user without a home."""
    try:
        return platformdirs.user_state_path("prdp", appauthor=False) / "ledger.sqlite"
    except RuntimeError:
        raise PlanError(
            f"{arg('ledger')}: this user has no home for a ledger of its own: name one, or set HOME"
        ) from None


def _scheme(url: str | None) -> str | None:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url or "")
    return None if scheme is None else scheme.group(1)


def _path(url: str | None) -> Path:
    if url is None:
        return own_file()
    scheme = _scheme(url)
    if scheme is None and url:
        return Path(url)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    # The address may hold a password: only its scheme is shown.
    kind = f"{scheme}://…" if scheme is not None else "an empty address"
    raise PlanError(
        f"{arg('ledger')}: {kind} is not supported: give a file as a path or as sqlite:///path, "
        "or a server as postgresql://user@host/database"
    )
