"""What disclosure officers do with a release: approve or reject a held one, withdraw a published one, purge staging.

Each act is recorded first and carried out then; a crash in between is finished by doing the same again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pipeline.base.errors import PlanError, StateError, file_errors, hint
from pipeline.ledger.datasets import OF_OFFICERS, REFUSALS, Budget
from pipeline.ledger.entries import unknown
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.microdata_rules import require_one_kind
from pipeline.ledger.store import Ledger
from pipeline.microdata.lakehouse import microdata_at
from pipeline.plan.load import resolved_dataset
from pipeline.plan.meaning import dataset_mistakes
from pipeline.plan.messages import Mistake, lines_of, shape_mistakes
from pipeline.plan.model import RECORD
from pipeline.plan.plan_schema import DatasetSpec, LimitSpec
from pipeline.plan.plan_text import BUDGET, read_text
from pipeline.plan.values import Name, Spec, Text
from pipeline.release.attempts import (
    attempt_of,
    finish,
    is_own,
    live_staging,
    names_of_roots,
    require_own,
    require_staged,
    root_of_name,
)
from pipeline.release.installation import site
from pipeline.release.pinned import FOLDER, Table, identity, require_new_files, source_of
from pipeline.release.publish import retract
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging, other_attempts


@dataclass(frozen=True)
class Purged:
    """What was removed of a release: the names of what was staged under one root."""

    release: str
    root: str
    names: tuple[str, ...]


def register(ledger: Ledger, budget: Budget) -> None:
    """Register a dataset or a family, as `Ledger.register`; StateError also where its files are another dataset's."""
    ledger.register(budget, _files_of(ledger, budget))


def correct(ledger: Ledger, budget: Budget) -> None:
    """Register a dataset or a family anew while nothing was released under it, as `Ledger.correct` and `register`."""
    ledger.correct(budget, _files_of(ledger, budget))


def _files_of(ledger: Ledger, budget: Budget) -> tuple[str, ...]:
    """Return the fingerprints of the contents of a dataset's files, as far as this user may read them.

    Raises StateError where they are another dataset's, or the budget's file is wrong in whether they are synthetic.
    """
    if budget.source is None or budget.source.startswith("table "):
        return ()
    require_new_files(ledger, budget.name, budget.source)
    files = identity(microdata_at(locate(budget.source)))
    if files.synthetic is not None:
        require_one_kind(budget.name, files.synthetic, budget, (), f"; or correct synthetic in {OF_OFFICERS}")
    return files.fingerprints


def unseen(budget: Budget) -> str | None:
    """Return a warning where nothing lies at the dataset's path, as far as this user sees; None where something does.

    An officer need not see the microdata, so nothing is refused.
    """
    if budget.source is None or budget.source.startswith("table "):
        return None
    try:
        there = locate(budget.source).exists()
    except (OSError, StateError, PlanError):
        there = False
    missing = (
        f"dataset.path: {budget.source} is not there, as far as this user sees: until the first release "
        f"prdp ledger correct {budget.name} --budget FILE can change it"
    )
    return None if there else missing


def approve(ledger: Ledger, release: str, record_only: bool = False) -> ReleaseState:
    """Approve the held attempt of a release, publish and settle it; return its state.

    Where the ledger asks for approvals by several, it stays held before the last. `record_only`: only the approval is
    recorded, and the next run of the release publishes; for officers who cannot read the staging folder or the site's
    signing key. Whatever it raises, nothing is recorded then.
    """
    signing = None if record_only else site().signing()
    with ledger.lock(release):
        state = known_state(ledger, release)
        if state.status == "held":
            if not record_only:
                require_staged(state, live_staging(ledger, state))
            state = state if state.approved else ledger.approve(release, attempt_of(state))
            record_only = record_only or not state.approved
        elif not (state.approved and state.status in PUBLIC):
            raise StateError(f"release {release}: is {state.status}, and not held for approval")
        return state if record_only else finish(ledger, state, out_of(state), signing)


def revoke(ledger: Ledger, release: str) -> ReleaseState:
    """Take one's approval of a held release back; return its state. Raises StateError where there is none."""
    with ledger.lock(release):
        return ledger.revoke(release, attempt_of(_held(ledger, release)))


def reject(ledger: Ledger, release: str, reason: str) -> ReleaseState:
    """Reject the held attempt of a release and destroy what is staged; the charge stays, nothing more is drawn."""
    with ledger.lock(release):
        state = known_state(ledger, release)
        if state.status != "rejected":
            state = _held(ledger, release)
            live_staging(ledger, state)  # raises where it is another ledger's, before anything is recorded
            state = ledger.reject(release, attempt_of(state), reason)
        _destroy_rest(ledger, state)
        return state


def withdraw(ledger: Ledger, release: str, reason: str) -> ReleaseState:
    """Withdraw a published release: its files go, a note that says so takes the manifest's place, its loss stays.

    `reason` is published in the note.
    """
    with ledger.lock(release):
        state = known_state(ledger, release)
        if state.status != "withdrawn":
            if state.status not in PUBLIC:
                raise StateError(f"release {release}: is {state.status}: what is not published cannot be withdrawn")
            state = ledger.withdraw(release, attempt_of(state), reason)
        retract(out_of(state), state)
        _destroy_rest(ledger, state)
        return state


def purge(ledger: Ledger, release: str | None = None) -> list[Purged]:
    """Remove, and record, what lies in staging of releases and is no live attempt; return what was removed.

    `release` None: of all releases in the ledger, and of those that a killed run sealed a DataFrame for before they
    were reserved. StateError, after the others, of one that a run works on or that lies in another ledger's staging.
    """
    purged: list[Purged] = []
    busy: StateError | None = None
    known = [state.release for state in ledger.states() if any(_staged(ledger, state, names_of_roots(state)).values())]
    for name in [*known, *_frames_alone(ledger)] if release is None else [release]:
        try:
            with ledger.lock(name):
                state = ledger.state(name)
                purged += _purge_frames(ledger, name) if state is None else _purge(ledger, state)
        except StateError as error:
            busy = error
    if busy is not None:
        raise busy
    return purged


def out_of(state: ReleaseState) -> Location:
    """Return the output that was reserved."""
    return locate(state.out, what="the ledger's output location")


def _purge(ledger: Ledger, state: ReleaseState) -> list[Purged]:
    for root, staged in _staged(ledger, state, set(state.stagings)).items():
        if staged:
            require_own(ledger, root_of_name(ledger, root))
    purged = []
    for name, staged in _leftovers(ledger, state).items():
        names = tuple(leftover.attempt for leftover in staged)
        ledger.purged(state.release, name, names)
        for leftover in staged:
            leftover.destroy()
        purged.append(Purged(state.release, str(root_of_name(ledger, name)), names))
    return purged


def _frames_alone(ledger: Ledger) -> list[str]:
    root, known = ledger.staging_root, {state.release for state in ledger.states()}
    if not is_own(ledger, root_of_name(ledger, None)):
        return []
    return sorted({path.parent.name for path in root.glob(f"*/{FOLDER}-*")} - known)


def _purge_frames(ledger: Ledger, release: str) -> list[Purged]:
    """Remove sealed DataFrames of a release that was never reserved: nothing was drawn, so nothing is recorded."""
    root = root_of_name(ledger, None)
    frames = [leftover for leftover in other_attempts(root, release, None) if leftover.attempt.startswith(f"{FOLDER}-")]
    if not frames:
        known_state(ledger, release)
    require_own(ledger, root)
    for leftover in frames:
        leftover.destroy()
    return [Purged(release, str(root), tuple(leftover.attempt for leftover in frames))] if frames else []


def _leftovers(ledger: Ledger, state: ReleaseState) -> dict[str | None, list[Staging]]:
    leftovers = _staged(ledger, state, names_of_roots(state))
    return {name: staged for name, staged in leftovers.items() if staged and is_own(ledger, root_of_name(ledger, name))}


def _staged(ledger: Ledger, state: ReleaseState, roots: set[str | None]) -> dict[str | None, list[Staging]]:
    live = state.attempt if state.status in ("drawn", "held", "published") else None
    return {name: other_attempts(root_of_name(ledger, name), state.release, live) for name in roots}


def _destroy_rest(ledger: Ledger, state: ReleaseState) -> None:
    what = f"release {state.release}: is {state.status}, but what is staged cannot be removed: "
    with file_errors(what, ": run prdp ledger admin staging purge as its owner"):
        for staged in _leftovers(ledger, state).values():
            for leftover in staged:
                leftover.destroy()


def _held(ledger: Ledger, release: str) -> ReleaseState:
    state = known_state(ledger, release)
    if state.status != "held":
        raise StateError(f"release {release}: is {state.status}, and not held for approval")
    return state


def known_state(ledger: Ledger, release: str) -> ReleaseState:
    """Return the state of a release; StateError where the ledger knows none."""
    state = ledger.state(release)
    if state is None:
        raise unknown("release", release, (state.release for state in ledger.states()))
    return state


# The file that an officer writes to register a dataset or a family of datasets, or to state limits anew.


Limits = Annotated[list[LimitSpec], Field(min_length=1)]
Refusals = Annotated[int, Field(ge=0, le=1_000_000)]


class DatasetBudgetSpec(Spec):
    """A dataset, described as plans describe it, with its limits and the family that it belongs to."""

    dataset: DatasetSpec
    family: Name | None = None
    synthetic: bool = False
    limits: Limits
    refusals: Refusals = REFUSALS


class FamilyBudgetSpec(Spec):
    """A family of datasets of the same establishments: their common unit, and limits over all of them."""

    unit: Text
    limits: Limits
    refusals: Refusals = REFUSALS


def load_budget(path: Path, name: str) -> Budget:
    """Return the budget in the YAML file `path` for the dataset or family `name`; paths in it are relative to it.

    A file with the key `dataset` is a dataset's, one with `unit` a family's. Raises PlanError with one line for each
    mistake.
    """
    text = read_text(path, BUDGET)
    kind = DatasetBudgetSpec if "dataset" in text.data else FamilyBudgetSpec
    if kind is FamilyBudgetSpec and "unit" not in text.data:
        raise PlanError(f"{path}: missing key dataset, as plans have it (or unit, for a family of datasets)")
    try:
        spec = kind.model_validate(text.data)
    except ValidationError as error:
        mistakes = list(shape_mistakes(error.errors(include_url=False), kind))
    else:
        mistakes = list(_mistakes(spec, name))
    if mistakes:
        raise PlanError(*lines_of(mistakes, text, path))
    return _budget(spec, name, path.parent)


def _mistakes(spec: DatasetBudgetSpec | FamilyBudgetSpec, name: str) -> Iterator[Mistake]:
    measures = None
    unit = spec.unit if isinstance(spec, FamilyBudgetSpec) else spec.dataset.unit
    if isinstance(spec, DatasetBudgetSpec):
        measures = spec.dataset.measures
        yield from dataset_mistakes(spec.dataset)
        if spec.dataset.name != name:
            yield Mistake(("dataset", "name"), f"must be {name}, as in the command")
        if spec.dataset.family not in (None, spec.family):
            yield Mistake(("family",), f"must be {spec.dataset.family}, as in dataset.family")
    for i, limit in enumerate(spec.limits):
        if isinstance(limit.at, list) and unit == RECORD:
            yield Mistake(("limits", i, "at"), "must be a mapping; a list is for a unit that is an owner column")
        for record in limit.records:
            for measure, value in record.items():
                path = ("limits", i, "at", measure)
                if isinstance(value, str):
                    yield Mistake(path, "must be a number of a measure: a dataset's limit holds anywhere")
                elif measures is not None and measure not in measures:
                    yield Mistake(path, f"unknown measure{hint(measure, measures, 'measure')}")


def _budget(spec: DatasetBudgetSpec | FamilyBudgetSpec, name: str, folder: Path) -> Budget:
    if isinstance(spec, FamilyBudgetSpec):
        limits = [limit.resolved(spec.unit) for limit in spec.limits]
        return Budget(name=name, unit=spec.unit, limits=limits, refusals=spec.refusals)
    dataset = resolved_dataset(spec.dataset, folder)
    microdata = None if dataset.path is None else microdata_at(dataset.path.resolve("dataset.path"))
    return Budget(
        name=name,
        unit=dataset.unit,
        limits=[limit.resolved(dataset.unit) for limit in spec.limits],
        facts=dataset.facts(),
        source=source_of(microdata or Table(dataset.table or "")),
        family=spec.family,
        refusals=spec.refusals,
        synthetic=spec.synthetic,
    )
