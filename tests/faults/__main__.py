"""Every fault of table.py, done to a real release: a table of what was expected and seen, and an exit code.

    python -m tests.faults [--list] [--only PATTERN]… [--keep FOLDER]

The exit code is 0 where all that was done ended as expected, 1 where anything did not, 2 where no fault has the name.
As root it first takes a mount namespace of its own, so that full disks and false names are seen by the drill alone.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults.judge import Seen, differences, expected, leaks, look, staged
from tests.faults.scene import HOSTS, LOCALHOST, Scene, opened
from tests.faults.shared import Shared, others
from tests.faults.table import FAULTS, Fault

ENDING = (signal.SIGINT, signal.SIGTERM)
APART = "PRDP_FAULTS_APART"  # set in the process that has mounts of its own
WAIT = 20.0  # seconds for the processes of a killed driver to end
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of each Spark: a fifth less of its processor's time
WIDTH = 120  # characters of a line that the table repeats


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the faults, do none")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="faults whose name has it (repeatable)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="an empty folder, in which what ended otherwise is kept"
    )
    asked = parser.parse_args()
    wanted = [fault for fault in FAULTS if any(meant(part, fault.name) for part in asked.only or [""])]
    if not wanted:
        print(f"error: no fault has {' or '.join(asked.only)} in its name: see --list", file=sys.stderr)
        return 2
    if asked.list:
        print(*(fault.name for fault in wanted), sep="\n")
        return 0
    for number in ENDING:
        signal.signal(number, end)
    os.environ["JAVA_TOOL_OPTIONS"] = JAVA
    try:
        apart()
        rows = all_done(wanted, asked.keep)
    except KeyboardInterrupt:
        print("error: ended before all was done; what was started has ended", file=sys.stderr)
        return 1
    print(table(wanted, rows))
    return int(any(verdict == "DIFFERENT" for verdict, *_ in rows))


def meant(pattern: str, name: str) -> bool:
    """Return whether a pattern means a fault: the one that has it as its whole name, else each whose name has it."""
    return name == pattern if pattern in {fault.name for fault in FAULTS} else pattern in name


def end(*_: object) -> None:
    """End the drill once: make, and a terminal, may both send its signal, and what was started is yet to be ended."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def all_done(wanted: list[Fault], keep: Path | None) -> list["Row"]:
    """Do the faults one after the other; whatever ends this, nothing that was started is left, nor its files."""
    began, rows = time.monotonic(), []
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prdp-faults-")))
        shared = Shared(folder, stack)
        stack.callback(shared.end_all)
        for number, fault in enumerate(wanted):
            rows.append(row(fault, folder / f"{number:03}", shared))
            print(f"[{time.monotonic() - began:6.0f} s] {rows[-1][0]:9} {fault.name}", flush=True)
            for line in rows[-1][3]:
                print(f"             {line}", flush=True)
    return rows


def apart() -> None:
    """Go on in a process with mounts of its own, and a file of names of its own, where root may have them."""
    if APART in os.environ:
        own = Path(tempfile.mkstemp(prefix="prdp-faults-hosts-")[1])
        others = [line for line in HOSTS.read_text().splitlines() if "localhost" not in line.split()]
        own.write_text("\n".join([LOCALHOST, *others, ""]))
        own.chmod(0o644)
        subprocess.run(["mount", "--bind", own, HOSTS], check=True)
        own.unlink()
    elif os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0:
        again = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        os.execvpe("unshare", ["unshare", "--mount", *again], os.environ | {APART: "1"})


Row = tuple[str, str, str, list[str]]


def row(fault: Fault, folder: Path, shared: Shared) -> Row:
    """Do one fault; return the verdict, what was expected, what was seen, and the differences."""
    lacking = fault.lacking(APART in os.environ)
    if lacking:
        return "skipped", expected(fault), lacking, []
    folder.mkdir(parents=True)
    try:
        with opened(fault, folder, shared) as scene:
            seen = done(fault, scene)
    except Exception as error:  # of the drill itself: it is told, and the next fault is done
        shared.end(fault.engine, keep=True)
        return "DIFFERENT", expected(fault), "", [f"the drill failed: {type(error).__name__}: {error}"]
    wrong = differences(fault, seen)
    if wrong:
        shared.end(fault.engine, keep=True)
    else:
        shutil.rmtree(folder)
    return "DIFFERENT" if wrong else "as told", expected(fault), seen.told, wrong


def done(fault: Fault, scene: Scene) -> Seen:
    """Run the command with the fault, mend it, and run the command again."""
    scene.start(fault.at)
    met = scene.met()
    with contextmanager(fault.act)(scene) if met else ExitStack():
        scene.go()
        ended = scene.ended(1)
    after = look(scene.place, scene.ledger())
    scene.start()
    again = scene.ended()
    last = look(scene.place, scene.ledger())
    left: list[int] = []
    if fault.engine != "airflow":
        deadline = time.monotonic() + WAIT
        while (left := others(scene.cues)) and time.monotonic() < deadline:
            time.sleep(0.2)
    meanwhile, told = tuple(scene.meanwhile), [leak for at in (scene.folder, scene.own) if at for leak in leaks(at)]
    return Seen(met, ended, after, again, last, meanwhile, staged(scene), tuple(told), tuple(left))


def table(faults: list[Fault], rows: list[Row]) -> str:
    """The closing report."""
    lines = [""]
    for fault, (verdict, wanted, told, wrong) in zip(faults, rows, strict=True):
        lines.append(f"{verdict:10} {fault.name}")
        for name, text in (("expected", wanted), ("seen", told), *(("wrong", each) for each in wrong)):
            lines.append(f"           {name:8} {text if len(text) <= WIDTH else text[:WIDTH] + '…'}")
    count = {each: sum(verdict == each for verdict, *_ in rows) for each in ("as told", "DIFFERENT", "skipped")}
    lines += ["", f"{len(rows)} faults: " + ", ".join(f"{number} {each}" for each, number in count.items() if number)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
