"""The decisions of the DAGs, without Airflow: which commands of prdp to run, and what their ends mean.

Imports the standard library alone, since Airflow's environment holds no prdp: commands are those of another
environment. How a release ended is read from the ledger, however its process ended. Only prdp's own lines are passed
on, which hold no record's value and no count; for exit code 4, which is confidential, not even those.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, TextIO
from urllib.parse import urlsplit

FINAL = (2, 3, 4)  # exit codes that another try would only repeat
CONFIDENTIAL = 4
TIDY_SECONDS = 60  # for a command that is to end; killing it loses no more than a machine that stops
ENDED = ("aborted", "rejected", "withdrawn")
PROGRESS = re.compile(r"\[ *[0-9]+\.[0-9] s\] ")  # how prdp begins a line of progress
ERROR = "error: "
LOG_KEYS = {"time", "level", "event", "command", "message"}  # of a line of --log-json

Say = Callable[[str], object]


class Refused(Exception):
    """Another try would end in the same way."""


class Unfinished(Exception):
    """Another try continues where this one stopped."""


class End(Enum):
    """How far a release came, when its process ended."""

    PUBLISHED = auto()
    HELD = auto()
    REFUSED = auto()
    UNFINISHED = auto()


@dataclass(frozen=True)
class Site:
    """The locations of this site; each field is Airflow's variable `prdp_<field>`, None if it is not set."""

    bin: str  # the folder of the commands prdp, python and spark-submit
    home: str  # the folder that holds jobs/ and conf/ of the same prdp
    plans: str  # the folder below which plans are taken
    out: str | None = None
    ledger: str | None = None
    staging: str | None = None
    diagnostics: str | None = None  # a private folder
    dask_scheduler: str | None = None
    lineage: str | None = None  # a file of OpenLineage events
    logs: str | None = None  # a private folder for logs as JSON
    spark_conf: str | None = None
    py_files: str | None = None
    worker_python: str | None = None

    @classmethod
    def of(cls, variable: Callable[[str], str | None]) -> "Site":
        """Return the site of Airflow's variables; raises Refused where one is missing or wrong."""
        values = {field.name: variable(f"prdp_{field.name}") or None for field in fields(cls)}
        for name in ("bin", "home", "plans"):
            if values[name] is None or not os.path.isabs(str(values[name])):
                raise Refused(f"Airflow's variable prdp_{name}: give it the absolute path of a folder")
        if "://" in (values["ledger"] or "") and urlsplit(str(values["ledger"])).password is not None:
            raise Refused(
                "Airflow's variable prdp_ledger: leave the password to PGPASSFILE, in the worker's environment"
            )
        return cls(**values)  # type: ignore[arg-type]

    def command(self, *arguments: str) -> list[str]:
        """Return the call of prdp with these arguments."""
        return [f"{self.bin}/prdp", *arguments]

    def plan(self, name: str) -> str:
        """Return the path of a plan below the folder of plans; raises Refused where `name` leads elsewhere."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith(("/", "-")) or ".." in parts:
            raise Refused(f"plan {name!r}: name a file below the folder of plans")
        path = Path(self.plans, name)
        if not path.resolve().is_relative_to(Path(self.plans).resolve()):
            raise Refused(f"plan {name!r}: leads out of the folder of plans")
        return str(path)

    def ledger_option(self) -> list[str]:
        """Return the option that names the ledger; none where prdp's own default or the site's file decides."""
        return [] if self.ledger is None else ["--ledger", self.ledger]

    def location_options(self) -> list[str]:
        """Return the options for where a release is staged, published and recorded."""
        named = {"--out": self.out, "--staging": self.staging}
        return [*(text for pair in named.items() if pair[1] for text in pair if text), *self.ledger_option()]

    def release(self, plan: str, values: Mapping[str, str], *, hold: bool = False, csv: bool = False) -> list[str]:
        """Return the arguments of a release of the plan with these values of its variables."""
        switches = [name for name, on in (("--hold", hold), ("--csv", csv)) if on]
        lineage = [] if self.lineage is None else ["--lineage", self.lineage]
        return [self.plan(plan), *set_options(values), *self.location_options(), *switches, *lineage, *self._logged()]

    def diagnose(self, plan: str, values: Mapping[str, str], published: str, folder: str) -> list[str]:
        """Return the arguments of diagnostics in a new `folder`; raises Refused where the site has none for them."""
        if self.diagnostics is None:
            raise Refused("Airflow's variable prdp_diagnostics: name the private folder of diagnostics")
        named = ["--out", f"{self.diagnostics}/{file_name(folder)}", "--release", published]
        return [self.plan(plan), *set_options(values), *named, *self.ledger_option(), *self._logged()]

    def _logged(self) -> list[str]:
        return ["--json"] if self.logs is None else ["--json", "--log-json"]

    def log_file(self, name: str) -> Path | None:
        """Return the private file of a command's log as JSON; None where the site wants none."""
        return None if self.logs is None else Path(self.logs, f"{file_name(name)}.jsonl")

    def on_dask(self, command: str, arguments: Sequence[str]) -> list[str]:
        """Return the call of a command of prdp on Dask."""
        scheduler = [] if self.dask_scheduler is None else ["--scheduler", self.dask_scheduler]
        return self.command(command, *arguments, *scheduler)

    def on_spark(self, command: str, arguments: Sequence[str], master: str) -> list[str]:
        """Return the call of a command of prdp by spark-submit, whose driver runs here."""
        settings = ["--properties-file", self.spark_conf or f"{self.home}/conf/spark/local.conf"]
        packed = [] if self.py_files is None else ["--py-files", self.py_files]
        where = ["--master", master, "--deploy-mode", "client", "--name", "prdp"]
        program = ["release.py"] if command == "release" else ["submit.py", command]
        return ["spark-submit", *where, *settings, *packed, f"{self.home}/jobs/{program[0]}", *program[1:], *arguments]

    def environment(self, operator: str) -> dict[str, str]:
        """Return the commands' environment beside Airflow's own; `operator` is the one that the ledger records."""
        python = f"{self.bin}/python"
        return {
            "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": self.home,  # the command and the scripts are of one build
            "PYSPARK_PYTHON": self.worker_python or python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PRDP_OPERATOR": "".join(c for c in operator if c.isprintable())[:200],
        }


def values_of(stated: str | Mapping[str, object] | None) -> dict[str, str]:
    """Return the values of a plan's variables, a mapping of texts or its JSON; raises Refused on anything else."""
    try:
        values = json.loads(stated) if isinstance(stated, str) and stated.strip() else stated or {}
    except ValueError:
        values = None
    if not isinstance(values, Mapping) or not all(isinstance(each, str) for each in values.values()):
        raise Refused('set: give the values of the plan\'s variables as text, such as {"year": "2026"}')
    return {str(name): str(value) for name, value in values.items()}


def set_options(values: Mapping[str, str]) -> list[str]:
    """Return the options that give the variables of a plan their values."""
    return [text for name, value in values.items() for text in ("--set", f"{name}={value}")]


def is_true(value: object) -> bool:
    """Return a switch, or the text that Airflow's templates make of one; raises Refused on anything else."""
    if str(value) not in ("True", "False"):
        raise Refused(f"{str(value)[:50]!r}: must be True or False")
    return str(value) == "True"


def file_name(text: str) -> str:
    """Return `text` with all but plain letters, digits and . _ - replaced."""
    return re.sub("[^A-Za-z0-9._-]", "_", text)


def master_of(host: str | None, port: int | None, settings: Mapping[str, object]) -> str:
    """Return the master that a connection of Airflow names; raises Refused where its driver would run elsewhere."""
    if settings.get("deploy-mode") not in (None, "client"):
        raise Refused("Airflow's connection to Spark: its deploy-mode must be client")
    if not host:
        raise Refused("Airflow's connection to Spark: name the master as its host")
    return f"{host}:{port}" if port else host


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without Airflow's settings, which hold its connections and its database's address."""
    return {name: value for name, value in environment.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}


def relay(lines: Iterable[str], say: Say, keep: Say = lambda line: None) -> list[str]:
    """Pass prdp's progress on as it comes, and return its errors; all other lines are dropped.

    Spark's own lines show counts, and a traceback may show more. Lines of --log-json go to `keep`, whole.
    """
    errors = []
    for line in lines:
        event = logged(line)
        if event is not None:
            keep(line)
            if event["event"] == "error":
                errors.append(str(event["message"]))
            elif event["message"]:
                say(str(event["message"]))
        elif PROGRESS.match(line):
            say(line.rstrip())
        elif line.startswith(ERROR):
            errors.append(line.removeprefix(ERROR).rstrip())
    return errors


def logged(line: str) -> Mapping[str, Any] | None:
    """Return a line of prdp's --log-json; None where it is another line."""
    try:
        values = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return values if isinstance(values, dict) and values.keys() >= LOG_KEYS else None


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code (None: unknown), its standard output and its errors."""

    code: int | None
    out: str = ""
    errors: Sequence[str] = ()

    def reason(self) -> str:
        """Return prdp's own messages on what went wrong; none that are confidential, or might be."""
        if self.code is None:
            return "the exit code of the command is unknown"
        if self.code == CONFIDENTIAL:
            return "the reason is confidential: run the command by hand where the microdata are"
        return "; ".join(self.errors) or f"the command ended with exit code {self.code}"

    def failure(self) -> Exception:
        """Return the exception for a command that failed."""
        return (Refused if self.code in FINAL else Unfinished)(self.reason())


class Running:
    """The command that is under way, so that whoever ends its task can end it too."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def end(self) -> None:
        """End the command and all that it started: it may tidy up for TIDY_SECONDS, and is killed then."""
        process = self.process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):  # the group outlives its first process while one of it is there
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(TIDY_SECONDS)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Say,
    running: Running | None = None,
    log_file: Path | None = None,
) -> Done:
    """Run a command of prdp to its end, in a group of processes of its own; an exception, such as a timeout, ends them.

    Its log as JSON is appended to `log_file`, which is its user's alone.
    """
    running = running or Running()
    wanted = without_airflow(os.environ) | dict(environment)
    errors: list[str] = []
    with _opened(log_file) as log:
        try:
            process = running.process = subprocess.Popen(
                command,
                env=wanted,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"{command[0]} cannot be run: {error.strerror}; see Airflow's variable prdp_bin") from None
        with process:
            reader = Thread(target=lambda: errors.extend(relay(process.stderr or (), say, log.write)), daemon=True)
            reader.start()
            try:
                out = process.stdout.read() if process.stdout else ""
            except BaseException:  # its time is out
                running.end()
                raise
            finally:
                reader.join()
                running.process = None
    return Done(process.returncode, out, errors)


def _opened(log_file: Path | None) -> TextIO:
    """Return a private file, in a folder that is made private if it is not there; without one, what keeps nothing."""
    if log_file is None:
        return open(os.devnull, "a")
    try:
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(log_file, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))
    except OSError as error:
        raise Refused(f"{log_file}: cannot be written: {error.strerror}; see Airflow's variable prdp_logs") from None


def run_json(command: Sequence[str], environment: Mapping[str, str], say: Say, running: Running | None = None) -> Any:
    """Run a command of prdp that prints JSON, and return that; raises Refused or Unfinished if it fails."""
    done = run(command, environment, say, running)
    if done.code != 0:
        raise done.failure()
    return json.loads(done.out)


def release_in(shown: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the release `name` in the output of `prdp ledger show --json`; None if it was never reserved."""
    # The others are runs of diagnostics and budgets.
    return next((each for each in shown if "attempts" in each and each["release"] == name), None)


def end_of(code: int | None, release: Mapping[str, Any] | None) -> End:
    """Return how a release ended: by the ledger, and by the exit code where the ledger leaves it open."""
    state = None if release is None else release["state"]
    if state == "settled":
        return End.PUBLISHED
    if release is not None and state == "held" and not release["approved"]:
        return End.HELD
    if code in FINAL or (release is not None and state in ENDED and release["draws"]):
        return End.REFUSED
    return End.UNFINISHED


def require_released(done: Done, release: Mapping[str, Any] | None) -> str:
    """Return the state of a release that is published or held; raises Refused or Unfinished otherwise."""
    end = end_of(done.code, release)
    if release is not None and end in (End.PUBLISHED, End.HELD):
        return str(release["state"])
    if end is End.REFUSED:
        raise Refused(done.reason())
    raise Unfinished(f"the ledger does not show it as published: {done.reason()}")


def approved(release: Mapping[str, Any] | None) -> bool:
    """Whether a release no longer waits for an officer; raises Refused if it never will be published."""
    state = None if release is None else release["state"]
    if release is None or state not in ("held", "published", "settled"):
        raise Refused(f"the release is {state or 'not in the ledger'}, and waits for no approval")
    return state != "held" or bool(release["approved"])
