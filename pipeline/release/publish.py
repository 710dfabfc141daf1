"""Staging and publishing: the tables are drawn into private staging; the chosen attempt is copied to its output, and
one atomic step, the manifest, makes it public.

The front page of its public site follows. Withdrawing takes all back: notes take the places of manifest and front page,
and the files are removed.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from pipeline.base.canonical import readable_json
from pipeline.base.errors import StateError, arg, file_errors
from pipeline.base.log import Log, counted
from pipeline.engines.protocol import Destination, Totals
from pipeline.engines.writers import FILE_CELLS, FORMATS, PARQUET, ranges, sweep
from pipeline.ledger.fold import ReleaseState
from pipeline.plan.model import UnitNames, owner_of
from pipeline.plan.total_policy import classes_decide
from pipeline.publication.description import METADATA, SITE, Description
from pipeline.publication.manifest import NOTE, named_signer
from pipeline.publication.policy_document import CLASSES, guarantee, of_owners
from pipeline.publication.site.site_files import FRONT, stage_public
from pipeline.publication.site.site_pages import published_page, withdrawn_page
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.paths import CONFIDENTIAL_MARKS, PUBLIC_MARKS, require_not_in
from pipeline.storage.staging import MANIFEST, SIGNATURE, AttemptContents, Staging, safe_name, together
from udfs.noise.keystream import SecretKey

if TYPE_CHECKING:
    from pipeline.publication.signing import SigningKey


CELLS_AT_ONCE, TABLES_AT_ONCE = 2 * FILE_CELLS, 100  # of small tables that are drawn together, by all processors


def require_publishable(out: Location, release: str, staging_root: Location, attempt: str | None) -> None:
    """Raise StateError where `release` cannot be published under `out`; called before anything is reserved.

    `attempt` is the one that the ledger has published, if any. `out` must be writable, lie in no folder that prdp
    marked, not overlap the staging root, have no other attempt, and create a manifest without replacing one.
    """
    if out.overlaps(staging_root):
        raise StateError(f"the output {out} and the staging folder {staging_root} overlap: give another {arg('out')}")
    folder = out.resolve(arg("out")) / safe_name("release", release)
    folder.require_create("the output")  # a store that does not answer says so here, once
    if attempt is None:  # what the ledger has published is finished where it lies
        require_not_in({**PUBLIC_MARKS, **CONFIDENTIAL_MARKS}, out)
    present = published_attempt(folder)
    unknown = MANIFEST if present is not None and present != attempt else None
    if present is None and attempt is None and (folder / SIGNATURE).exists():
        unknown = SIGNATURE
    if unknown is not None:
        raise StateError(
            f"{folder / unknown} is there already and not by this ledger: give another {arg('out')} or release name"
        )


def stage(  # noqa: PLR0913 — what is drawn with which key, and who is asked and told
    about: Description,
    totals: Totals,
    staging: Staging,
    formats: Collection[str],
    *,
    key: SecretKey,
    live: Callable[[], object],
    log: Log,
) -> tuple[dict[str, Any], set[str]]:
    """Draw the tables under a fresh key, and write all files; return facts of the attempt, and the path of every file.

    `live` raises StateError, before further files, where another run destroyed the draw while this one stood still.
    """
    plan, files = about.plan, set[str]()
    with log.stage("stage", "describing the tables"):
        notes = {query.name: about.notes(query.name) for query in plan.queries}
    rows = [plan.domain.query_cells(query.by, query.where).size for query in plan.queries]
    for numbers in drawn_together(rows):
        first, *more = names = [plan.queries[number].name for number in numbers]
        with log.stage("stage", f"drawing {first}" + (f" and {len(more)} more" if more else "")):
            live()
            places = list(map(Destination, numbers, map(staging.table_folder, names), map(notes.__getitem__, names)))
            totals.stage(places, key)
            for place, name in zip(places, names, strict=True):
                live()
                sweep(place.folder, {file for file, _, _ in ranges(rows[place.table])})
                for each in formats:
                    FORMATS[each].convert(staging.path / "tables", name)
                for each in (PARQUET.name, *formats):
                    files |= {f"tables/{file}" for file in FORMATS[each].files(name, rows[place.table])}
    tables = [{"query": query.name, "rows": size} for query, size in zip(plan.queries, rows, strict=True)]
    stated: dict[str, Any] = {"tables": tables} | ({"classes": True} if classes_decide(plan) else {})
    stated |= {"owners": owners} if (owners := of_owners(plan)) else {}
    with log.stage("stage", "making the public site"):
        return stated, files | stage_public(about, staging, (PARQUET.name, *formats), live)


def drawn_together(rows: Sequence[int]) -> Iterator[range]:
    """Yield the numbers of tables of so many rows that are drawn together: one, or such that have few."""
    first = 0
    for end in range(1, len(rows) + 1):
        if end in (len(rows), first + TABLES_AT_ONCE) or sum(rows[first : end + 1]) > CELLS_AT_ONCE:
            yield range(first, end)
            first = end


def build_manifest(state: ReleaseState, contents: AttemptContents) -> dict[str, Any]:
    """Return release.json: facts that do not depend on the microdata, the same however often it is built.

    `contents.about` holds `engine` ({"name": …, "versions": {package: version}}) and `tables` ([{"query": …,
    "rows": …}] in plan order), and `classes` where they decide what a unit loses (of older attempts the policy says
    it). Paths are relative to the manifest's folder; the date is a UTC day. Raises StateError unless `contents` are
    those that the ledger published.
    """
    if state.contents != contents.digest:
        raise StateError(f"release {state.release}: the staged files are not those that the ledger published")
    files = [
        {"path": f"{state.attempt}/{path}", "sha256": file.sha256, "bytes": file.bytes}
        for path, file in sorted(contents.files.items())
    ]
    tables = []
    for table in contents.about["tables"]:
        home = f"{state.attempt}/tables/{table['query']}/"
        mine = [file for file in files if str(file["path"]).startswith(home)]
        tables.append({"query": table["query"], "rows": table["rows"], "files": mine})
    in_tables = {file["path"] for table in tables for file in table["files"]}
    classes = contents.about.get("classes", "spans" in state.reservation["policy"])
    owner = owner_of(state.reservation["dataset_facts"]["unit"])
    return {
        "release": state.release,
        "attempt": state.attempt,
        "plan_digest": state.digest,
        "engine": contents.about["engine"],
        "date": state.date,
        "tables": tables,
        "files": [file for file in files if file["path"] not in in_tables],
        "guarantee": guarantee(
            owner,
            state.reservation["plan"]["dataset"]["duplicates"],
            state.test,
            traits=[*([CLASSES] if classes else []), *contents.about.get("owners", ())],
            names=UnitNames.of_resolved(state.reservation["plan"]),
        ),
        "ledger_head": state.head,
    } | approvals_named(state)


def approvals_named(state: ReleaseState) -> dict[str, Any]:
    """Return what release.json says of approvals: the roles, where the ledger asks for them; else nothing."""
    if state.required is None:
        return {}
    return {"approvals": [{"role": each.role, "date": each.time[:10]} for each in state.approvals]}


def copy_to_output(
    staging: Staging,
    contents: AttemptContents,
    out: Location,
    manifest: Mapping[str, Any],
    signing: "SigningKey | None" = None,
) -> Location:
    """Copy the staged attempt to out/<release>/<attempt>, then create out/<release>/release.json; return its folder.

    Call it only for the attempt that the ledger published. A crash anywhere is finished by calling it again: what
    is there and the same is kept. release.json appears complete, after every file it names is complete and durable,
    and is never replaced. With `signing` its signature is there before it: no reader ever sees it without. Raises
    StateError where another attempt, other contents or another signature are there.
    """
    folder = out / staging.release
    target = folder / staging.attempt
    present = published_attempt(folder)
    if present not in (None, staging.attempt):
        raise StateError(f"{folder / MANIFEST} names another attempt, {present}: nothing was copied")
    with _unwritable(folder):
        _copy_files(staging, contents, target)
        written = readable_json(manifest).encode()
        _sign(folder, written, staging.attempt, signing)
        # One that is there may be our own, of an earlier try.
        if (
            not (folder / MANIFEST).create(written, staging.attempt)
            and published_attempt(folder) != manifest["attempt"]
        ):
            raise StateError(f"{folder / MANIFEST} names another attempt: this one is not published here")
    return folder


def _unwritable(folder: Location) -> AbstractContextManager[None]:
    return file_errors(f"the output {folder} cannot be written: ", ": run again")


def _sign(folder: Location, manifest: bytes, attempt: str, signing: "SigningKey | None") -> None:
    """Write the signature of the manifest, or keep the same one; a run without the key stops before it loses one."""
    file = folder / SIGNATURE
    written = (folder / MANIFEST).read() if (folder / MANIFEST).is_file() else None
    if signing is None:
        if written is None and file.exists():
            raise StateError(f"{file} is there, of an earlier run: run again with the site's signing key")
        return
    if written not in (None, manifest):
        raise StateError(f"{folder / MANIFEST} is not what is to be signed: run again with the build that wrote it")
    signature = signing.signature(manifest)
    if not file.create(signature, attempt) and file.read() != signature:
        raise StateError(
            f"{file} is there and by another key, or of another manifest: run again with the key that signed it, "
            "or remove it and run again"
        )


def put_front_page(folder: Location, notes: Sequence[str] = ()) -> None:
    """Write index.html beside the manifest in `folder`: the front page of the release's public site, with `notes`.

    An attempt that an older build staged has no site, and gets no front page. Raises StateError where there is no
    manifest, or the folder cannot be written.
    """
    attempt = published_attempt(folder)
    if attempt is None:
        raise StateError(f"{folder / MANIFEST} is not there: nothing is published in this folder")
    with _unwritable(folder), suppress(FileNotFoundError):
        manifest = json.loads((folder / MANIFEST).read())
        facts = json.loads((folder / attempt / SITE / METADATA).read())
        page = published_page(facts, f"{attempt}/{SITE}/", manifest, notes, named_signer(folder))
        (folder / FRONT).write_durably(page.encode(), private=False)


def _copy_files(staging: Staging, contents: AttemptContents, target: Location) -> None:
    """Copy what is not there yet, make it durable, and compare all of it with what was staged."""
    target.make_folder()
    present: dict[str, Location] = {}
    for file in target.files():
        name = file.relative_to(target)
        if file.is_partial():
            file.delete()
        elif name not in contents.files:
            raise StateError(f"{file} does not belong to the release: remove it and run again")
        else:
            present[name] = file

    def copy(file: tuple[str, FileDigest]) -> None:
        name, digest = file
        if name not in present:
            if not (target / name).copy_from(staging.path / name, digest):
                raise StateError(
                    f"{staging.path / name} changed since it was staged, or the disk is faulty: nothing is published"
                )
        elif not present[name].is_plain_file() or present[name].digest() != digest:
            raise StateError(f"{present[name]} is there with other contents: remove it and run again")

    copied = together(copy, contents.files.items(), staging.root, target)
    for _ in counted("copying files", copied, len(contents.files)):
        pass
    target.sync_folders()


def published_attempt(folder: Location) -> str | None:
    """Return the attempt that the release.json in `folder` names; None where there is no release.json."""
    try:
        with file_errors(f"{folder / MANIFEST} cannot be read: "), suppress(FileNotFoundError, NotADirectoryError):
            return str(json.loads((folder / MANIFEST).read())["attempt"])
        return None
    except (ValueError, KeyError, TypeError):
        raise StateError(f"{folder / MANIFEST} is no manifest of prdp: give another {arg('out')}") from None


def withdrawal_note(state: ReleaseState) -> dict[str, Any]:
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


def retract(out: Location, state: ReleaseState) -> None:
    """Put withdrawn.json in place of release.json under out/<release>, and remove the attempt's files.

    Call it for a release that the ledger says is withdrawn; a crash anywhere is finished by calling it again. Raises
    StateError where the folder holds another attempt or cannot be written.
    """
    folder = out / state.release
    present = published_attempt(folder)
    if present not in (None, state.attempt):
        raise StateError(f"{folder / MANIFEST} names another attempt, {present}: nothing was removed")
    with file_errors(f"the withdrawal is recorded, but {folder} cannot be changed: ", ": run again"):
        folder.make_folder()
        note = readable_json(withdrawal_note(state)).encode()
        (folder / NOTE).write_durably(note, private=False)  # first: readers always find one
        if (folder / FRONT).is_file():
            page = withdrawn_page(state.release, withdrawal_note(state))
            (folder / FRONT).write_durably(page.encode(), private=False)
        (folder / MANIFEST).delete()
        (folder / SIGNATURE).delete()
        (folder / str(state.attempt)).delete_tree()
        folder.sync_folders()
