"""Tables that add up: estimates from published releases, read as pandas tables, and sums of any of their cells."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from pipeline.base.errors import PlanError, arg
from pipeline.engines.registry import ENGINES
from pipeline.plan.keys import Where
from pipeline.publication.manifest import RECONCILED, Manifest
from pipeline.publication.product.derived import Derived, change_of, ratio_of, share_of
from pipeline.publication.product.exports import export
from pipeline.publication.reconcile.estimated_totals import Estimated, Picked
from pipeline.publication.reconcile.reconciled import Options, parse_where
from pipeline.publication.reconcile.reconciled_folder import (
    VerifiedTables,
    make_reconciled,
    verify_reconciled,
)
from pipeline.publication.release_folder import published_part
from pipeline.release.installation import site
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from prdp.declared import Arg, LocationLike, ReleaseFolders, documented, location, locations
from prdp.runs import OfEngine, Runner
from prdp.verified import public_key

if TYPE_CHECKING:
    import pandas as pd

Files = Mapping[str, str | Path]  # by measure, or "records"
STRUCTURE = "the plan of a release that has no structure.json"
FIXED = "public totals without noise (CSV or Parquet: levels and value) that tables are held to"
EXPECTED = "public totals to be expected, for weights of noise that depends on the total"
WEIGHING = "a noisy table from which such weights are made; it is left out of the estimates"
FOLDER = "folder to write, new or empty; without it sums of cells alone can be asked for"
DRAWS = "draw N solutions, for closer standard errors, where they are bounds, and shorter intervals"
CELLS = 'cells to add up, such as "naics2=31-33, state in 06,48"'
OF = "what --sum adds up: a measure, or records"
ENGINE = "engine whose workers each make the tables of a group"


@dataclass(frozen=True, eq=False)
class Reconciled(Mapping[str, "pd.DataFrame"]):
    """Reconciled tables by name: `reconciled["employment"]` is a pandas DataFrame.

    A table has its keys as text, then value (the estimate), lower, upper, standard_error, published (the released
    value) and display (whole and never negative). `facts`: what reconciled.json holds; nothing where no folder was
    written.
    """

    facts: Mapping[str, Any]
    _folder: Location | None = None
    _made_of: Estimated | None = field(default=None, repr=False)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return tuple(self.facts.get("tables", ()))

    @documented
    def sum(
        self,
        where: Annotated[str | Where, Arg(CELLS, "CELLS", option=True, many=True, flag="sum")] = "",
        of: Annotated[str | None, Arg(OF, "MEASURE", option=True, default="the only one")] = None,
    ) -> Picked:
        """Return the estimated sum of all cells that meet a filter, or have codes by level, with error and interval.

        Raises:
            PlanError: The tables do not tell these cells from others, or the releases are not at hand: a folder that
                was read alone does not hold what it takes.
        """
        return self.source.picked(cells_of(where), of)

    def ratio(self, numerator: str, denominator: str, where: str | Where = "") -> Derived:
        """Return the ratio of two totals of the same cells, such as payroll per employee (docs/reconcile.md).

        `where` and what is raised: as for `sum`. The interval holds at least as often as `interval` says; where the
        denominator is not told from 0 it is NaN, and `notes` say so.
        """
        return ratio_of(self.source, numerator, denominator, cells_of(where), self._interval)

    def share(self, of: str, where: str | Where, inside: str | Where = "") -> Derived:
        """Return the share that the cells `where` have of the total of a measure `inside` others, or of all cells."""
        return share_of(self.source, of, cells_of(where), cells_of(inside), self._interval)

    def change(self, before: "Reconciled", of: str, where: str | Where = "") -> tuple[Derived, Derived]:
        """Return the change and the relative change of a total since another year's reconciled tables.

        `notes` say how many codes are new or gone, where the two are not the same places or industries.
        """
        return change_of(self.source, before.source, of, cells_of(where), self._interval)

    @property
    def source(self) -> Estimated:
        """The estimates behind the tables, as statistics of totals are made of them."""
        if self._made_of is None:
            raise PlanError(
                "an error of a sum needs the releases: call prdp.reconcile with them, without a folder to write"
            )
        return self._made_of

    @property
    def _interval(self) -> float:
        return self.source.options.interval

    @property
    def folder(self) -> str | None:
        """The folder that holds reconciled.json; None where none was written."""
        return None if self._folder is None else str(self._folder)

    def write(
        self,
        out: str | Path,
        *,
        csv: bool = False,
        sign: bool = False,
        engine: str | None = None,
        **on: Unpack[OfEngine],
    ) -> "Reconciled":
        """Write the tables to a new or empty folder, as `reconcile` does where one is given; return them."""
        if self._made_of is None:
            raise PlanError("tables are made of releases: call prdp.reconcile with them")
        runner, signing = Runner(engine=engine, **on), site().signing_asked(sign)
        if runner.has_engine:
            with runner.started() as started:
                facts = make_reconciled(self._made_of, Path(out), csv=csv, each=started.each, signing=signing)
        else:
            facts = make_reconciled(self._made_of, Path(out), csv=csv, signing=signing)
        return Reconciled(facts, locate(os.fspath(out), what=arg("out")), self._made_of)

    def export(
        self, to: str, out: str | Path | None = None, *, tables: Sequence[str] = (), **options: Any
    ) -> dict[str, Any]:
        """Write the tables of a folder in another format, as `PublishedRelease.export`; PlanError without a folder."""
        if self._folder is None:
            raise PlanError("no folder was written: there is nothing to export")
        return export(self._folder, to, None if out is None else Path(out), tables, **options)

    def verify(self, *, key: str | Path | None = None) -> VerifiedTables:
        """Return what was verified: files are the manifest's, and every coarser cell is the sum of finer ones.

        Raises StateError that names the first file or table of which that is not so, PlanError without a folder. With
        `key`, the file of the publisher's public key, StateError also where the manifest is not signed by it.
        """
        if self._folder is None:
            raise PlanError("no folder was written: there is nothing to verify")
        return verify_reconciled(self._folder, public_key(key))

    def __getitem__(self, table: str) -> "pd.DataFrame":
        path = f"tables/{table}.parquet"
        for file in self.facts.get("files", ()):
            if file["path"] == path and self._folder is not None:
                frame: pd.DataFrame = published_part(self._folder, file).read().to_pandas()
                return frame
        raise KeyError(f"{table}: no such table; there are {', '.join(self) or 'none without a folder'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return f"<prdp.Reconciled {', '.join(self) or 'without a folder'}>"


def cells_of(where: str | Where) -> Where:
    """Return a filter that is written as text, or as codes by level."""
    if isinstance(where, str):
        return parse_where(where) if where.strip() else {}
    return {level: tuple(codes) for level, codes in where.items()}


class Weights(TypedDict, total=False):
    """How tables are weighted where they are reconciled."""

    plans: Annotated[Sequence[str | Path], Arg(STRUCTURE, "PLAN", many=True, flag="plan")]
    fixed: Annotated[Files, Arg(FIXED, "MEASURE=FILE", "measured", many=True)]
    expected: Annotated[Files, Arg(EXPECTED, "MEASURE=FILE", "measured", many=True)]
    weights_from: Annotated[Sequence[str], Arg(WEIGHING, "TABLE", many=True)]
    leave_out: Annotated[Sequence[str], Arg("a table that carries no weight", "TABLE", many=True)]
    interval: Annotated[float, Arg("coverage that intervals have at least", kind="probability", default="0.95")]
    max_cells: Annotated[int, Arg("most finest common cells", "N", "at_least_one", default="200 million")]


class Reconciling(Weights, OfEngine, total=False):
    """How tables are weighted, and where an engine makes them."""


@documented
def reconcile(
    releases: ReleaseFolders,
    out: Annotated[str | Path | None, Arg(FOLDER, "DIR", option=True)] = None,
    *,
    csv: Annotated[bool, Arg("write every table as CSV too")] = False,
    sign: Annotated[bool, Arg("sign reconciled.json with the site's key (prdp ledger admin keys create)")] = False,
    draws: Annotated[int, Arg(DRAWS, "N", "count", default="0")] = 0,
    engine: Annotated[str | None, Arg(ENGINE, choices=list(ENGINES), default="none, this process")] = None,
    **options: Unpack[Reconciling],
) -> Reconciled:
    """Return best linear unbiased estimates of all tables of published releases, which add up (docs/reconcile.md).

    It reads what is published alone, and costs no record anything. Without `out` sums of cells can be asked for, and
    no table. An engine's workers reach the releases and `out`; the tables are the same.

    Raises:
        PlanError: Releases are not of one dataset, or the options do not fit them.
        StateError: A release's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    stated: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    weights = {name: stated.pop(name) for name in Weights.__annotations__ if name in stated}
    for name in {"fixed", "expected"} & weights.keys():
        weights[name] = {measure: Path(path) for measure, path in weights[name].items()}
    weights["plans"] = [Path(path) for path in weights.get("plans", ())]
    made = Reconciled({}, None, Estimated(locations(releases, "release"), Options(**weights, draws=draws)))
    if out is not None:
        return made.write(out, csv=csv, sign=sign, engine=engine, **stated)
    if sign:
        raise PlanError("sign=True signs the tables' manifest: give out")
    if Runner(engine=engine, **stated).has_engine:
        raise PlanError("engines make tables: give out, or leave the engine's options out")
    return made


def read_reconciled(path: LocationLike) -> Reconciled:
    """Return the tables of a reconciled folder, whose files are those of its manifest; StateError where they are not.

    `Reconciled.verify` repeats the check of sums.
    """
    folder = location(path, "reconciled tables")
    return Reconciled(Manifest.verified(folder, RECONCILED).facts, folder)
