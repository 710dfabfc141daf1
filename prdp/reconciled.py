"""Tables that add up: estimates from published releases, sums of any of their cells, and ratios, shares and change."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from pipeline.base.errors import PlanError, arg
from pipeline.engines import ENGINES
from pipeline.plan.domain.keys import Where
from pipeline.plan.load import load_plan
from pipeline.publication.estimated_totals import Estimated, Picked
from pipeline.publication.manifest import RECONCILED, Manifest
from pipeline.publication.product import derived
from pipeline.publication.product.derived import Derived, Source
from pipeline.publication.product.exports import export
from pipeline.publication.published_totals import Published
from pipeline.publication.reconciled import Options, parse_where
from pipeline.publication.reconciled_folder import VerifiedTables, make_reconciled, verify_reconciled
from pipeline.publication.release_folder import published_part
from pipeline.release.installation import site
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from prdp.declared import Arg, LocationLike, NewFolder, ReleaseFolders, documented, location, locations
from prdp.runs import OfEngine, Runner
from prdp.verified import public_key

if TYPE_CHECKING:
    import pandas as pd

Files = Mapping[str, str | Path]  # by measure, or "records"
STRUCTURE = "the plan of a release that has no structure.json"
FIXED = "public totals (CSV or Parquet: levels and value) that tables are held to"
EXPECTED = "public totals to expect, for weights of noise that grows with totals"
WEIGHING = "a noisy table from which such weights are made; it is left out of the estimates"
FOLDER = "folder to write, new or empty; needed but for --sum"
DRAWS = "draw N solutions, for closer standard errors and shorter intervals"
CELLS = 'cells to add up, such as "naics2=31-33, state in 06,48"'
OF = "what --sum adds up: a measure, or records"
ENGINE = "engine whose workers make groups of tables"


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
        return derived.ratio_of(self.source, numerator, denominator, cells_of(where), self._interval)

    def share(self, of: str, where: str | Where, inside: str | Where = "") -> Derived:
        """Return the share that the cells `where` have of the total of a measure `inside` others, or of all cells."""
        return derived.share_of(self.source, of, cells_of(where), cells_of(inside), self._interval)

    def change(self, before: "Reconciled", of: str, where: str | Where = "") -> tuple[Derived, Derived]:
        """Return the change and the relative change of a total since another year's reconciled tables.

        `notes` say how many codes are new or gone, where the two are not the same places or industries.
        """
        return derived.change_of(self.source, before.source, of, cells_of(where), self._interval)

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
    sign: Annotated[bool, Arg("sign it with the site's key (prdp ledger admin keys create)")] = False,
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


PICKED = 'the cells, such as "naics2=31-33, state in 06,48"'
Releases = Sequence[LocationLike] | LocationLike


class Statistic(Weights, total=False):
    """A statistic of totals; for one of every cell of a table, tables stand where measures do."""

    total: Annotated[str, Arg("the total itself, or with --since its change", "MEASURE")]
    ratio: Annotated[str, Arg("one total over another, such as payroll/employment", "MEASURE/MEASURE")]
    share: Annotated[str, Arg("the share that --where has of --inside, or of all cells", "MEASURE")]
    since: Annotated[Releases, Arg("releases of before, to compare --total with", "OUT/RELEASE", several=True)]
    published: Annotated[bool, Arg("take totals as published, without reconciling them")]


@documented
def derive(
    releases: ReleaseFolders,
    *,
    where: Annotated[str | Where, Arg(PICKED, "CELLS", default="all")] = "",
    inside: Annotated[str | Where, Arg("the cells of the total of --share", "CELLS", default="all")] = "",
    mean: Annotated[bool, Arg("the best mean of all published tables of stable noise")] = False,
    **statistic: Unpack[Statistic],
) -> tuple[Derived, ...]:
    """Return a statistic of picked cells with standard error and interval; with `since` change and relative change.

    The interval holds the true statistic at least as often as it says; where none can be stated it is NaN and `notes`
    say why (docs/reconcile.md). It costs no record anything. Noise without a variance needs `published`.

    Raises:
        PlanError: Not just one of total, ratio and share; or the tables do not tell the cells, or their errors.
        StateError: A release's file is missing, changed or too many.
    """
    total, ratio, share, since, published, options = _split(statistic)
    kind = _one(total, ratio, share)
    if since is not None and kind != "total":
        raise PlanError(f"{arg('since')}: it goes with {arg('total')}")
    if inside and kind != "share":
        raise PlanError(f"{arg('inside')}: it goes with {arg('share')}")
    source, interval = _source(releases, published, options), _interval(options)
    cells = cells_of(where)
    if mean:
        if total is None or since is not None or not isinstance(source, Published):
            raise PlanError(
                f"{arg('mean')}: it goes with {arg('total')} and {arg('published')}, and without {arg('since')}"
            )
        return (derived.total_of(source.mean(total, cells, interval), interval),)
    if total is not None and since is not None:
        return derived.change_of(source, _source(since, published, options), total, cells, interval)
    if total is not None:
        return (derived.total_of(source.total(total, cells, interval), interval),)
    if share is not None:
        return (derived.share_of(source, share, cells, cells_of(inside), interval),)
    return (derived.ratio_of(source, *_sides(ratio or ""), cells, interval),)


@documented
def derive_table(
    releases: ReleaseFolders,
    out: NewFolder,
    *,
    csv: Annotated[bool, Arg("write the table of --out as CSV too")] = False,
    **statistic: Unpack[Statistic],
) -> dict[str, Any]:
    """Write a statistic of every cell of a table, with standard errors and intervals; return what derived.json holds.

    Raises:
        PlanError: As for `derive`, or two tables have different cells.
        StateError: A release's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    total, ratio, share, since, published, options = _split(statistic)
    if (_one(total, ratio, share) == "total") != (since is not None):
        raise PlanError(f"{arg('since')}: with {arg('out')} it goes with {arg('total')}, and {arg('total')} with it")
    source, interval = _source(releases, published, options), _interval(options)
    if total is not None and since is not None:
        made = derived.change_by_cell(source, _source(since, published, options), total, interval)
    elif share is not None:
        made = derived.share_by_cell(source, share, interval)
    else:
        made = derived.ratio_by_cell(source, *_sides(ratio or ""), interval)
    facts: dict[str, Any] = derived.write_table(made, source.releases, Path(out), interval, csv)
    return facts


def _split(statistic: Statistic) -> tuple[Any, Any, Any, Any, bool, dict[str, Any]]:
    options: dict[str, Any] = {**statistic}
    total, ratio, share, since = (options.pop(name, None) for name in ("total", "ratio", "share", "since"))
    return total, ratio, share, since, options.pop("published", False), options


def _one(total: str | None, ratio: str | None, share: str | None) -> str:
    chosen = [name for name, of in (("total", total), ("ratio", ratio), ("share", share)) if of is not None]
    if len(chosen) != 1:
        raise PlanError("one of total, ratio and share is needed")
    return chosen[0]


def _sides(ratio: str) -> tuple[str, str]:
    numerator, sign, denominator = (part.strip() for part in ratio.partition("/"))
    if not (numerator and sign and denominator):
        raise PlanError(f"{arg('ratio', ratio)}: write one over the other, such as payroll/employment")
    return numerator, denominator


def _interval(options: dict[str, Any]) -> float:
    interval = float(options.get("interval", 0.95))
    if not 0 < interval < 1:
        raise PlanError(f"{arg('interval')} {interval:g}: a number above 0 and below 1 is needed")
    return interval


def _source(releases: Releases, published: bool, options: dict[str, Any]) -> Source:
    if not published:
        return reconcile(releases, **options).source
    unused = sorted(name for name, value in options.items() if value and name not in {"interval", "plans"})
    if unused:
        raise PlanError(f"{arg('published')}: {arg(unused[0])} says how tables are weighted, and none is")
    plans = [load_plan(Path(path)) for path in options.get("plans", ())]
    return Published(locations(releases, "release"), plans)
