"""What is left after a fault, and after the next run, and whether that is one release or none, with a right ledger."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.errors import PrdpError
from pipeline.ledger.store import Ledger
from pipeline.publication.manifest import verify_release
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST
from tests.faults.scene import CANARIES, RELEASE, Ended, Scene
from tests.faults.table import Fault
from tests.support.leaks import found
from tests.support.ledgers import entries
from tests.support.submit import Place


@dataclass(frozen=True)
class Look:
    """The ledger of a release, and what outsiders see of it."""

    state: str  # "none": never reserved
    draws: int
    charges: int
    chain: tuple[str, ...]  # the hash of each entry
    recorded: int  # entries "drawn"
    chosen: frozenset[str | None]  # the attempts of entries "published"
    visible: frozenset[str]  # the attempts of which a file lies in the output
    wrong: tuple[str, ...]  # what the ledger's and the manifest's own checks say


@dataclass(frozen=True)
class Seen:
    """A run with a fault, what it left, the next run without it, and what that one left."""

    met: bool
    ended: Ended
    after: Look
    again: Ended
    finally_: Look
    meanwhile: tuple[int | None, ...] = ()
    staged: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        line = self.ended.line.removeprefix("error: ")
        return " · ".join(filter(None, (_exit(self.ended.code), line, self.after.state)))


def expected(fault: Fault) -> str:
    """What the table expects, as `Seen.told` says what was seen."""
    return " · ".join(filter(None, (_exit(fault.code), fault.line, fault.state)))


def _exit(code: int | None) -> str:
    return "hangs" if code is None else f"signal {-code}" if code < 0 else f"exit {code}"


def look(place: Place, ledger: Ledger) -> Look:
    """Look at a release as the ledger's own checks and outsiders do."""
    wrong, state = [], None
    try:
        ledger.verify()
        state = ledger.state(RELEASE)
    except PrdpError as error:
        wrong.append(f"the chain: {error}")
    out = locate(place.out) / RELEASE
    files = [file.relative_to(out) for file in out.files()]
    if MANIFEST in files:
        try:
            verify_release(out)
        except PrdpError as error:
            wrong.append(f"the release: {error}")
    chain = entries(ledger)
    return Look(
        state="none" if state is None else state.status,
        draws=state.draws if state else 0,
        charges=state.charges if state else 0,
        chain=tuple(entry.hash for entry in chain),
        recorded=sum(entry.event == "drawn" for entry in chain),
        chosen=frozenset(entry.attempt for entry in chain if entry.event == "published"),
        visible=frozenset(name.partition("/")[0] for name in files if "/" in name),
        wrong=tuple(wrong),
    )


def leaks(folder: Path, canaries: Sequence[str] = CANARIES) -> tuple[str, ...]:
    """The canaries that stand in any file below a folder but the microdata and the drill's own copy of them."""
    told = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or "microdata" in path.parts or path.name == "kept":
            continue
        with suppress(FileNotFoundError):  # a cluster goes on at its work
            text = path.read_bytes().decode("latin-1")
            told += [f"{canary} in {path.relative_to(folder)}" for canary in found(text, canaries)]
    return tuple(told)


def staged(scene: Scene) -> tuple[str, ...]:
    """What is left in staging of a release that has ended."""
    root = locate(scene.place.staging)
    return tuple(file.relative_to(root) for file in root.files() if "/" in file.relative_to(root))


def differences(fault: Fault, seen: Seen) -> list[str]:
    """What was seen that must not be, in plain words; nothing where all is as expected."""
    after, last = seen.after, seen.finally_
    wrong = [*after.wrong, *last.wrong]
    if not seen.met:
        wrong.append(f"no process came to {fault.at}: the fault did not take effect")
    if seen.told.split(" · ")[0] != _exit(fault.code) or fault.line not in seen.ended.line:
        wrong.append(f"the run ended otherwise: {seen.told}")
    if bool(seen.ended.line) != (fault.code > 0):
        wrong.append("an exit code above 0 comes with a line, and no other does")
    if seen.ended.trace or seen.again.trace:
        wrong.append("a traceback")
    if after.state != fault.state:
        wrong.append(f"the ledger says {after.state} after the fault")
    if seen.meanwhile != fault.meanwhile:
        wrong.append(f"another run meanwhile ended with {seen.meanwhile}")
    if seen.again.code != 0 or last.state != "settled":
        wrong.append(f"the next run: {_exit(seen.again.code)}, {seen.again.line or last.state}")
    if (last.draws, last.charges) != (fault.draws, 1):
        wrong.append(f"{last.draws} draws, {last.charges} charges")
    if last.recorded != last.draws or (after.recorded and not after.charges):
        wrong.append("a draw is not recorded, or not charged")
    if last.chain[: len(after.chain)] != after.chain:
        wrong.append("entries of the ledger were changed or are gone")
    if len(last.chosen) != 1 or not after.visible <= last.visible or last.visible != last.chosen:
        wrong.append(f"published: {set(last.chosen)}; seen: {set(after.visible)}, then {set(last.visible)}")
    wrong += [f"left in staging: {name}" for name in seen.staged[:3]]
    wrong += [f"told: {leak}" for leak in seen.leaks]
    if seen.left:
        wrong.append(f"processes that did not end: {len(seen.left)}")
    return wrong
