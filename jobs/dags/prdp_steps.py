"""What the DAGs decide, without Airflow: which commands of prdp they run, and what the ends of these mean.

Standard library alone: Airflow's environment holds no prdp. Commands are those of another environment, and how a
release ended is read from the ledger, whatever became of the process. Nothing is passed on but what prdp itself says,
which holds no record's value and no count; and of exit code 4, which is confidential, not even that.
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
ENDED = ("aborted", "rejected", "withdrawn")
PROGRESS = re.compile(r"\[ *[0-9]+\.[0-9] s\] ")  # how prdp begins a line of progress
ERROR = "error: "

Say = Callable[[str], None]


class Refused(Exception):
    """Another try would end the same way."""


class Unfinished(Exception):
    """Another try goes on where this one stopped."""


class End(Enum):
    """How far a release came, when its process ended."""

    PUBLISHED = auto()
    HELD = auto()
    REFUSED = auto()
    UNFINISHED = auto()


@dataclass(frozen=True)
class Site:
    """Where things lie at this site; each field is Airflow's variable `prdp_<field>`, None where it is not set."""

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
        """Return the site that Airflow's variables tell; raises Refused where one is missing or wrong."""
        told = {field.name: variable(f"prdp_{field.name}") or None for field in fields(cls)}
        for name in ("bin", "home", "plans"):
            if told[name] is None or not os.path.isabs(str(told[name])):
                raise Refused(f"Airflow's variable prdp_{name}: give it the absolute path of a folder")
        if "://" in (told["ledger"] or "") and urlsplit(str(told["ledger"])).password is not None:
            raise Refused(
                "Airflow's variable prdp_ledger: leave the password to PGPASSFILE, in the worker's environment"
            )
        return cls(**told)  # type: ignore[arg-type]

    def command(self, *arguments: str) -> list[str]:
        """Return the call of prdp with these arguments."""
        return [f"{self.bin}/prdp", *arguments]

    def plan(self, name: str) -> str:
        """Return the path of a plan below the folder of plans; raises Refused where `name` leads elsewhere."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith(("/", "-")) or ".." in parts:
            raise Refused(f"plan {name!r}: name a file below the folder of plans")
        found = Path(self.plans, name)
        if not found.resolve().is_relative_to(Path(self.plans).resolve()):
            raise Refused(f"plan {name!r}: leads out of the folder of plans")
        return str(found)

    def ledger_option(self) -> list[str]:
        """Return the option that names the ledger; none where prdp's own default or the site's file decides."""
        return [] if self.ledger is None else ["--ledger", self.ledger]

    def places(self) -> list[str]:
        """Return the options that say where a release is staged, published and recorded."""
        named = {"--out": self.out, "--staging": self.staging}
        return [*(text for pair in named.items() if pair[1] for text in pair if text), *self.ledger_option()]

    def release(self, plan: str, *, hold: bool = False, csv: bool = False) -> list[str]:
        """Return the arguments of a release, as prdp release and jobs/release.py take them."""
        switches = [name for name, on in (("--hold", hold), ("--csv", csv)) if on]
        return [self.plan(plan), *self.places(), *switches, "--json"]

    def diagnose(self, plan: str, published: str, folder: str) -> list[str]:
        """Return the arguments of diagnostics in a new `folder`; raises Refused where the site names no place."""
        if self.diagnostics is None:
            raise Refused("Airflow's variable prdp_diagnostics: name the private folder of diagnostics")
        out = f"{self.diagnostics}/{re.sub('[^A-Za-z0-9._-]', '_', folder)}"
        return [self.plan(plan), "--out", out, "--release", published, *self.ledger_option(), "--json"]

    def dask(self) -> list[str]:
        """Return the options of the Dask engine."""
        return [] if self.dask_scheduler is None else ["--scheduler", self.dask_scheduler]

    def environment(self, operator: str) -> dict[str, str]:
        """Return what commands find in their environment beside Airflow's own; `operator` is who the ledger names."""
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


def listen(lines: Iterable[str], say: Say) -> list[str]:
    """Say prdp's progress as it comes, and return its errors; what else stands there is dropped.

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
    """How a command ended: its exit code (None: not known), its standard output and its errors."""

    code: int | None
    out: str = ""
    errors: Sequence[str] = ()

    def why(self) -> str:
        """Return prdp's own words on what went wrong; none where they are confidential, or might be."""
        if self.code is None:
            return "how the command ended is not known"
        if self.code == CONFIDENTIAL:
            return "the reason is confidential: run the command by hand where the microdata are"
        return "; ".join(self.errors) or f"the command ended with exit code {self.code}"

    def failure(self) -> Exception:
        """Return the exception for a command that failed."""
        return (Refused if self.code in FINAL else Unfinished)(self.why())


def run(command: Sequence[str], environment: Mapping[str, str], say: Say) -> Done:
    """Run a command of prdp to its end."""
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
        listener = Thread(target=lambda: errors.extend(listen(process.stderr or (), say)))
        listener.start()
        out = process.stdout.read() if process.stdout else ""
        listener.join()
    return Done(process.returncode, out, errors)


def answer(command: Sequence[str], environment: Mapping[str, str], say: Say) -> Any:
    """Run a command of prdp that prints JSON, and return what it says; raises Refused or Unfinished where it fails."""
    done = run(command, environment, say)
    if done.code != 0:
        raise done.failure()
    return json.loads(done.out)


def story_in(shown: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the release in what `prdp ledger show RELEASE --json` says; None where it was never reserved."""
    return next((each for each in shown if "attempts" in each), None)  # the others are runs of diagnostics


def end_of(code: int | None, story: Mapping[str, Any] | None) -> End:
    """Return how a release ended: as the ledger says, and by the exit code where the ledger leaves it open."""
    state = None if story is None else story["state"]
    if state == "settled":
        return End.PUBLISHED
    if story is not None and state == "held" and not story["approved"]:
        return End.HELD
    if code in FINAL or (story is not None and state in ENDED and story["draws"]):
        return End.REFUSED
    return End.UNFINISHED


def require_released(done: Done, story: Mapping[str, Any] | None) -> str:
    """Return the state of a release that is published or held; raises Refused or Unfinished otherwise."""
    end = end_of(done.code, story)
    if story is not None and end in (End.PUBLISHED, End.HELD):
        return str(story["state"])
    if end is End.REFUSED:
        raise Refused(done.why())
    raise Unfinished(f"the ledger does not say that it is published: {done.why()}")


def approved(story: Mapping[str, Any] | None) -> bool:
    """Whether a release waits for an officer no longer; raises Refused where it never will be published."""
    state = None if story is None else story["state"]
    if story is None or state not in ("held", "published", "settled"):
        raise Refused(f"the release is {state or 'not in the ledger'}, and waits for no approval")
    return state != "held" or bool(story["approved"])
