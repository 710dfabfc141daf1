"""What a run came to: what was done, what was done before it, and what of the call is not."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import StateError
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.plan.model import Plan
from pipeline.release.manifest import read_manifest
from pipeline.storage.location import Location
from pipeline.storage.uri import locate
from pipeline.tables.writers import FORMATS


@dataclass(frozen=True)
class Outcome:
    """The end of a run; `tables`: by query, its folder (held: where it is staged) and number of rows.

    `page`: the public site's front page, of a held release as it is staged; an earlier build may have made none.

    `already`: it was published, or held, before this run, which read and drew nothing. `not_done`: what was asked and
    not done, because the release was drawn before this run.
    """

    release: str
    attempt: str
    state: str
    out: Location
    tables: Mapping[str, Mapping[str, Any]]
    page: Location
    already: bool
    not_done: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The outcome as `prdp release --json` prints it."""
        return {
            "release": self.release,
            "attempt": self.attempt,
            "state": self.state,
            "out": str(self.out),
            "tables": dict(self.tables),
            "already": self.already,
            "not_done": list(self.not_done),
        }


def left_behind(release: str, state: ReleaseState | None) -> str:
    """Return what an interrupted run leaves in the ledger, and what to run next, in one line."""
    again = "run the same command again"
    if state is None or state.refunded:
        return f"interrupted: nothing is reserved for release {release}; {again}"
    left = {
        "reserved": f"nothing was drawn; {again}, or prdp ledger abort {release} to give its charge back",
        "drawn": f"{again}: a complete draw is published, an incomplete one destroyed and drawn anew",
        "settled": f"nothing is left to do; prdp verify {state.out}/{release}",
    }
    what = left.get(state.status, f"{again} to finish")
    return f"interrupted: release {release} is {state.status} in the ledger: {what}"


def not_done(before: str, state: ReleaseState, microdata: str, engine: str, hold: bool) -> tuple[str, ...]:
    """Return what a call asks for and a release that was drawn before it, and was in the state `before`, has otherwise.

    `microdata` is their name in the ledger. A format that is missing is refused: `require_formats`.
    """
    lines = []
    made = state.reservation["source"]
    if microdata != made:
        lines.append(f"the microdata {microdata} were not read: the release was made from {made}")
    elif before == "drawn":
        lines.append("the microdata were not read again: an earlier run drew and staged these tables, which stand")
    if state.status in PUBLIC:
        used = read_manifest(locate(state.out) / state.release)["engine"]["name"]
        if engine != used:
            lines.append(f"the engine {engine} was not used: the release was made with {used}")
        if hold and not state.hold:
            lines.append("it was not held for approval: it was published before that was asked")
    return tuple(lines)


def require_formats(formats: Collection[str], plan: Plan, state: ReleaseState, folder: Location) -> None:
    """Return if `folder`, published or staged, has every table in `formats`; raises StateError that says what to do."""
    for name in formats:
        files = [folder / "tables" / file for query, rows in sizes(plan) for file in FORMATS[name].files(query, rows)]
        if not all(file.is_file() for file in files):
            held = state.status == "held"
            when = "when an officer has approved it, " if held else ""
            raise StateError(
                f"release {state.release}: is {'held' if held else 'published'}, but was drawn without {name}: {when}"
                f"run prdp export {locate(state.out) / state.release} --to {name}"
            )


def sizes(plan: Plan) -> Iterator[tuple[str, int]]:
    """Yield each query's name and number of public cells."""
    for query in plan.queries:
        yield query.name, plan.domain.query_cells(query.by, query.where).size
