"""Tables that add up: estimates from published releases, read as pandas tables, and sums of any of their cells."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engines.registry import OPTIONS
from pipeline.errors import PlanError
from pipeline.plan.keys import Where
from pipeline.product.atoms import MAX_CELLS
from pipeline.product.derived import Derived, change_of, ratio_of, share_of
from pipeline.product.estimated_totals import Estimated
from pipeline.product.export import export
from pipeline.product.reconcile import Options, Picked, Reconciliation, parse_where
from pipeline.product.reconciled_folder import (
    VerifiedTables,
    make_reconciled,
    read_reconciled_manifest,
    require_files,
    verify_reconciled,
)
from pipeline.release.export import published_part
from pipeline.release.site import site
from pipeline.storage.location import Location
from pipeline.storage.uri import locate
from prdp.releases import public_key
from prdp.runs import LocationLike, Runner, location

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Reconciled(Mapping[str, "pd.DataFrame"]):
    """Reconciled tables by name: `reconciled["employment"]` is a pandas DataFrame.

    A table has its keys as text, then value (the estimate), lower, upper, standard_error, published (the released
    value) and display (whole and never negative). `facts`: what reconciled.json holds; nothing where no folder was
    written.
    """

    facts: Mapping[str, Any]
    _folder: Location | None = None
    _made_of: Reconciliation | None = field(default=None, repr=False)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return tuple(self.facts.get("tables", ()))

    def sum(self, where: str | Where = "", of: str | None = None) -> Picked:
        """Return the estimated sum of all cells that meet a filter, with its standard error and interval.

        Args:
            where: "naics2=31-33, state in 06,48", or codes by level: {"naics2": ["31-33"], "state": ["06", "48"]}.
            of: A measure, or "records"; not needed where all tables are of one.

        Raises:
            PlanError: The tables do not tell these cells from others, or the releases are not at hand: a folder that
                was read alone does not hold what it takes.
        """
        return self._reconciliation.picked(cells_of(where), of)

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
        return Estimated(self._reconciliation)

    @property
    def _reconciliation(self) -> Reconciliation:
        if self._made_of is None:
            raise PlanError(
                "an error of a sum needs the releases: call prdp.reconcile with them, without a folder to write"
            )
        return self._made_of

    @property
    def _interval(self) -> float:
        return self._reconciliation.options.interval

    @property
    def folder(self) -> str | None:
        """The folder that holds reconciled.json; None where none was written."""
        return None if self._folder is None else str(self._folder)

    def write(
        self, out: str | Path, *, csv: bool = False, sign: bool = False, engine: str | None = None, **options: Any
    ) -> "Reconciled":
        """Write the tables to a new or empty folder, as `reconcile` does where one is given; return them."""
        if self._made_of is None:
            raise PlanError("tables are made of releases: call prdp.reconcile with them")
        runner, signing = Runner(engine=engine, **options), site().signing_asked(sign)
        if all(value is None for value in (engine, *(getattr(runner, name) for name in OPTIONS))):
            facts = make_reconciled(self._made_of, Path(out), csv=csv, signing=signing)
        else:
            with runner.started() as started:
                facts = make_reconciled(self._made_of, Path(out), csv=csv, each=started.each, signing=signing)
        return Reconciled(facts, locate(os.fspath(out), what="--out"), self._made_of)

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
        raise KeyError(table)

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


def reconcile(
    releases: Sequence[LocationLike] | LocationLike,
    out: str | Path | None = None,
    *,
    plans: Sequence[str | Path] = (),
    fixed: Mapping[str, str | Path] | None = None,
    expected: Mapping[str, str | Path] | None = None,
    weights_from: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    interval: float = 0.95,
    csv: bool = False,
    sign: bool = False,
    max_cells: int | None = None,
    draws: int = 0,
    engine: str | None = None,
    **engine_options: Any,
) -> Reconciled:
    """Return best linear unbiased estimates of all tables of published releases, which add up (docs/reconcile.md).

    It reads what is published alone, and costs no record anything.

    Args:
        releases: The folders or URIs that hold release.json, of one dataset.
        out: The folder to write, new or empty. Default: none; then sums of cells can be asked for, and no table.
        plans: Plans of releases that have no structure.json.
        fixed: By measure (or "records") a CSV or Parquet file of totals that are known without noise: levels and value.
        expected: Likewise of totals to be expected, for weights of noise that depends on the total.
        weights_from: Noisy tables from which such weights are made; they are left out of the estimates.
        leave_out: Tables that carry no weight.
        interval: The coverage that intervals have at least.
        csv: Whether to write every table as CSV too.
        sign: Whether to sign reconciled.json with the site's key.
        max_cells: The most finest common cells of a group. Default: 200 million.
        draws: Solutions that are drawn for closer standard errors, where those of tables are upper bounds, and shorter
            intervals, where noise is additive and not all Gaussian.
        engine: "dask" or "spark", whose workers each make the tables of a group, and reach the releases and `out`.
            Default: none, one group after the other in this process. The tables are the same.
        **engine_options: Of the engine, as of `Plan.release`: scheduler, workers, master, progress.

    Raises:
        PlanError: Releases are not of one dataset, or the options do not fit them.
        StateError: A release's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    folders = [releases] if isinstance(releases, str | os.PathLike) else releases
    options = Options(
        plans=[Path(path) for path in plans],
        fixed={measure: Path(path) for measure, path in (fixed or {}).items()},
        expected={measure: Path(path) for measure, path in (expected or {}).items()},
        weights_from=tuple(weights_from),
        leave_out=tuple(leave_out),
        interval=interval,
        max_cells=MAX_CELLS if max_cells is None else max_cells,
        draws=draws,
    )
    found = Reconciled({}, None, Reconciliation([location(each, "release") for each in folders], options))
    if out is not None:
        return found.write(out, csv=csv, sign=sign, engine=engine, **engine_options)
    if sign:
        raise PlanError("sign=True signs the tables' manifest: give out")
    if engine is not None or engine_options:
        raise PlanError("engines make tables: give out, or leave the engine's options out")
    return found


def read_reconciled(path: LocationLike) -> Reconciled:
    """Return the tables of a reconciled folder, whose files are those of its manifest; StateError where they are not.

    `Reconciled.verify` repeats the check of sums.
    """
    folder = location(path, "reconciled tables")
    facts = read_reconciled_manifest(folder)
    require_files(folder, facts)
    return Reconciled(facts, folder)
