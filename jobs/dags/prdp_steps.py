"""The decisions of the DAGs, without Airflow: which commands of prdp to run, and what their ends mean.

Imports the standard library alone, since Airflow's environment holds no prdp: commands are those of another
environment. How a release ended is read from the ledger, however its process ended. Only prdp's own lines are passed
on, which hold no record's value and no count; for exit code 4, which is confidential, not even those.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

FINAL = (2, 3, 4)  # exit codes that another try would only repeat
CONFIDENTIAL = 4
TIDY_SECONDS = 60
ENDED = ("aborted", "rejected", "withdrawn")
PROGRESS = re.compile(r"\[ *[0-9]+\.[0-9] s\] ")  # how prdp begins a line of progress
ERROR = "error: "

Say = Callable[[str], None]


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

    def release(self, plan: str, *, hold: bool = False, csv: bool = False) -> list[str]:
        """Return the arguments of a release, as prdp release and jobs/release.py take them."""
        switches = [name for name, on in (("--hold", hold), ("--csv", csv)) if on]
        return [self.plan(plan), *self.location_options(), *switches, "--json"]

    def diagnose(self, plan: str, published: str, folder: str) -> list[str]:
        """Return the arguments of diagnostics in a new `folder`; raises Refused where the site has none for them."""
        if self.diagnostics is None:
            raise Refused("Airflow's variable prdp_diagnostics: name the private folder of diagnostics")
        out = f"{self.diagnostics}/{re.sub('[^A-Za-z0-9._-]', '_', folder)}"
        return [self.plan(plan), "--out", out, "--release", published, *self.ledger_option(), "--json"]

    def dask(self) -> list[str]:
        """Return the options of the Dask engine."""
        return [] if self.dask_scheduler is None else ["--scheduler", self.dask_scheduler]

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


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without Airflow's settings, which hold its connections and its database's address."""
    return {name: value for name, value in environment.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}


def relay(lines: Iterable[str], say: Say) -> list[str]:
    """Pass prdp's progress on as it comes, and return its errors; all other lines are dropped.

    Spark's own lines show counts, and a traceback may show more.
    """
    errors = []
    for line in lines:
        if PROGRESS.match(line):
            say(line.rstrip())
        elif line.startswith(ERROR):
            errors.append(line.removeprefix(ERROR).rstrip())
    return errors


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


def run(command: Sequence[str], environment: Mapping[str, str], say: Say) -> Done:
    """Run a command of prdp to its end; where Airflow ends the task before, by a timeout or a signal, end it too."""
    try:
        process = subprocess.Popen(
            command,
            env=without_airflow(os.environ) | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise Refused(f"{command[0]} cannot be run: {error.strerror}; see Airflow's variable prdp_bin") from None
    errors: list[str] = []
    with process:
        reader = Thread(target=lambda: errors.extend(relay(process.stderr or (), say)), daemon=True)
        reader.start()
        try:
            out = process.stdout.read() if process.stdout else ""
        except BaseException:
            _end(process)
            raise
        reader.join()
    return Done(process.returncode, out, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """Have a command tidy up and end; one that does not is killed, which loses no more than a machine that stops."""
    process.terminate()
    try:
        process.wait(TIDY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def run_json(command: Sequence[str], environment: Mapping[str, str], say: Say) -> Any:
    """Run a command of prdp that prints JSON, and return that; raises Refused or Unfinished if it fails."""
    done = run(command, environment, say)
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
