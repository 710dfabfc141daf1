"""Publishing: the chosen attempt is copied to its output place, and one atomic step, the manifest, makes it public."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import StateError
from pipeline.ledger.fold import ReleaseState
from pipeline.plan.model import owner_of
from pipeline.report.policy_document import guarantee
from pipeline.storage import conditional
from pipeline.storage.files import (
    contents_of,
    fingerprint,
    is_partial,
    make_folder,
    partial,
    sync_file,
    sync_folder,
    write_partial,
    write_whole,
)
from pipeline.storage.location import Place, Stored, overlap
from pipeline.storage.staging import MANIFEST, Facts, StagedFile, Staging, safe_name


def check_output_place(out: Place, release: str, staging_root: Place, attempt: str | None) -> None:
    """Make sure that `release` can be published under `out`, before anything is reserved; changes nothing.

    `attempt` is the one that the ledger has published, None where there is none. Raises StateError where `out`
    cannot be written, lies in the staging root or holds it, or has another attempt at this release; of a store also
    where it cannot create a manifest without replacing one.
    """
    if overlap(out, staging_root):
        raise StateError(f"the output place {out} and the staging folder {staging_root} overlap: give another --out")
    folder = out.resolve() / safe_name("release", release)
    if isinstance(folder, Stored):
        conditional.require(folder)
    present = published_attempt(folder)
    if present is not None and present != attempt:
        raise StateError(
            f"{folder / MANIFEST} is there already and not by this ledger: give another --out or release name"
        )
    if isinstance(folder, Stored):
        return
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        # Written and gone: permission bits alone do not tell (read-only and network file systems).
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise StateError(f"the output place {out} cannot be written ({nearest}: {error.strerror})") from None


def build_manifest(state: ReleaseState, facts: Facts) -> dict[str, Any]:
    """Return release.json: facts that do not depend on the microdata, the same however often it is built.

    `facts.about` holds `engine` ({"name": …, "versions": {package: version}}) and `tables` ([{"query": …, "rows": …}]
    in plan order). Paths are relative to the manifest's folder; the date is a UTC day. Raises StateError unless
    `facts` are those that the ledger published.
    """
    if state.contents != facts.digest:
        raise StateError(f"release {state.release}: the staged files are not those that the ledger published")
    files = [_listed(f"{state.attempt}/{path}", file) for path, file in sorted(facts.files.items())]
    tables = []
    for table in facts.about["tables"]:
        home = f"{state.attempt}/tables/{table['query']}/"
        mine = [file for file in files if file["path"].startswith(home)]
        tables.append({"query": table["query"], "rows": table["rows"], "files": mine})
    in_tables = {file["path"] for table in tables for file in table["files"]}
    owner = owner_of(state.reservation["dataset_facts"]["unit"])
    return {
        "release": state.release,
        "attempt": state.attempt,
        "plan_digest": state.digest,
        "engine": facts.about["engine"],
        "date": state.date,
        "tables": tables,
        "files": [file for file in files if file["path"] not in in_tables],
        "guarantee": guarantee(owner, state.reservation["plan"]["dataset"]["duplicates"]),
        "ledger_head": state.head,
    }


def place_output(staging: Staging, facts: Facts, out: Place, manifest: Mapping[str, Any]) -> Place:
    """Copy the staged attempt to out/<release>/<attempt>, then make out/<release>/release.json; return its folder.

    Call it only for the attempt that the ledger published. A crash anywhere is finished by calling it again: what
    is there and the same is kept. release.json appears whole, after every file it names is whole and durable, and
    is never replaced. Raises StateError where another attempt, or other contents, are there.
    """
    folder = out / staging.release
    present = published_attempt(folder)
    if present not in (None, staging.attempt):
        raise StateError(f"{folder / MANIFEST} names another attempt, {present}: nothing was copied")
    try:
        if isinstance(folder, Stored):
            _put_all(staging, facts, folder / staging.attempt)
            _put_manifest(folder, manifest)
        else:
            _copy_all(staging, facts, folder / staging.attempt)
            _create(folder / MANIFEST, manifest)
    except OSError as error:
        raise StateError(f"the output place {folder} cannot be written: {error.strerror}: run again") from None
    return folder


def published_attempt(folder: Place) -> str | None:
    """Return the attempt that the release.json in `folder` names; None where there is no release.json."""
    try:
        manifest = folder / MANIFEST
        return str(json.loads(manifest.read() if isinstance(manifest, Stored) else manifest.read_bytes())["attempt"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StateError(f"{folder / MANIFEST} is no manifest of prdp: give another --out") from None


def _listed(path: str, file: StagedFile) -> dict[str, Any]:
    return {"path": path, "sha256": file.sha256, "bytes": file.bytes}


def _copy_all(staging: Staging, facts: Facts, target: Path) -> None:
    make_folder(target, 0o755)
    for path in list(target.rglob("*")):
        if is_partial(path):
            path.unlink()
        elif not path.is_dir() and path.relative_to(target).as_posix() not in facts.files:
            raise StateError(f"{path} does not belong to the release: remove it and run again")
    for name, file in facts.files.items():
        _copy(staging, name, target / name, file)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        sync_folder(folder)


def _copy(staging: Staging, name: str, target: Path, file: StagedFile) -> None:
    if os.path.lexists(target):
        if target.is_symlink() or StagedFile(*fingerprint(target)) != file:
            raise StateError(f"{target} is there with other contents: remove it and run again")
        return
    make_folder(target.parent, 0o755)
    aside = partial(target)
    with os.fdopen(_new_file(aside), "wb") as writer:
        staging.copy(name, writer)
    sync_file(aside)
    if StagedFile(*fingerprint(aside)) != file:  # read back: what is published is what was staged
        aside.unlink()
        raise _changed(staging, name)
    os.rename(aside, target)


def _changed(staging: Staging, name: str) -> StateError:
    return StateError(f"{staging.path / name} changed since it was staged, or the disk is faulty: nothing is published")


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _text(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode()


def _create(path: Path, manifest: Mapping[str, Any]) -> None:
    # Named by the attempt: no other ledger that publishes here can write to it before it is linked.
    aside = write_partial(path.with_name(f"{MANIFEST}.{manifest['attempt']}"), _text(manifest), 0o644)
    try:
        os.link(aside, path)  # atomic, and never over one that is there
    except FileExistsError:
        _require_own(path.parent, manifest)
    finally:
        aside.unlink()
    sync_folder(path.parent)


def _put_all(staging: Staging, facts: Facts, target: Stored) -> None:
    """Put what is not there yet; each object is whole from the start, and is read back."""
    there = {at.relative_to(target) for at in target.objects()}
    for name in sorted(there - set(facts.files)):
        raise StateError(f"{target / name} does not belong to the release: remove it and run again")
    for name, file in facts.files.items():
        at = target / name
        if name not in there:
            data = staging.read(name)
            if StagedFile(*contents_of(data)) != file:
                raise _changed(staging, name)
            at.write(data)
        if StagedFile(*contents_of(at.read())) != file:
            raise StateError(f"{at} is there with other contents: remove it and run again")


def _put_manifest(folder: Stored, manifest: Mapping[str, Any]) -> None:
    if not conditional.create(folder / MANIFEST, _text(manifest)):
        _require_own(folder, manifest)


def _require_own(folder: Place, manifest: Mapping[str, Any]) -> None:
    if published_attempt(folder) != manifest["attempt"]:
        raise StateError(f"{folder / MANIFEST} names another attempt: this one is not published here") from None


# Withdrawn releases: what stands in the output place instead of the manifest and the files.


NOTE = "withdrawn.json"


def note_of(state: ReleaseState) -> dict[str, Any]:
    """Return withdrawn.json of a withdrawn release: public, so the reason must hold nothing confidential."""
    return {
        "release": state.release,
        "attempt": state.attempt,
        "plan_digest": state.digest,
        "published": state.date,
        "withdrawn": state.withdrawn_on,
        "reason": state.reason,
        "note": "This release was withdrawn by its publisher: do not use its tables. What was published stays counted "
        "in the losses of the records.",
        "ledger_head": state.withdrawal,
    }


def retract(out: Place, state: ReleaseState) -> None:
    """Put withdrawn.json in place of release.json under out/<release>, and remove the attempt's files.

    Call it for a release that the ledger says is withdrawn; a crash anywhere is finished by calling it again. Raises
    StateError where the place holds another attempt or cannot be written.
    """
    folder = out / state.release
    present = published_attempt(folder)
    if present not in (None, state.attempt):
        raise StateError(f"{folder / MANIFEST} names another attempt, {present}: nothing was removed")
    text = (json.dumps(note_of(state), ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode()
    try:
        if isinstance(folder, Stored):
            (folder / NOTE).write(text)
            (folder / MANIFEST).delete()
            (folder / str(state.attempt)).delete_below()
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / NOTE, text, 0o644)  # first: readers never find nothing at all
        (folder / MANIFEST).unlink(missing_ok=True)
        if (folder / str(state.attempt)).is_dir():
            shutil.rmtree(folder / str(state.attempt))
        sync_folder(folder)
    except OSError as error:
        raise StateError(
            f"the withdrawal is recorded, but {folder} cannot be changed: {error.strerror}: run again"
        ) from None


def withdrawn_note(folder: Place) -> dict[str, Any] | None:
    """Return the note in a release's folder; None where there is none to be read."""
    at = folder / NOTE
    try:
        note = json.loads(at.read() if isinstance(at, Stored) else at.read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
