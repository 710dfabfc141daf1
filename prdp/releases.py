"""Published releases: verified against their manifest, and read as pandas, Arrow or Dask tables."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

from pipeline.base.errors import PlanError, arg
from pipeline.plan.domain.keys import level_of
from pipeline.publication.manifest import Manifest, Verified
from pipeline.publication.product.exports import EXPORTS, export
from pipeline.publication.release_folder import json_in, published_part
from pipeline.release.request import Outcome
from pipeline.storage.location import Location
from pipeline.storage.paths import input_lines
from prdp.declared import Arg, LocationLike, NewFolder, ReleaseFolder, documented, located, location, locations

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


NEW_FOLDER = "folder to write, new or empty"
OF_TABLES = "folders or URIs that hold release.json or reconciled.json"
SHOWN = "what prdp reconcile made of these releases: shown in place of their values"
RECONCILED = "site: a folder that prdp reconcile made: its figures are shown"
DOWNLOADS = "site: a folder that prdp product made of the release: its files are for download"


class ListsCodes(Protocol):
    """A plan, as far as it says where names of codes come from."""

    @property
    def code_lists(self) -> Mapping[str, Path]: ...  # noqa: D102


CodeLists: TypeAlias = ListsCodes | Mapping[str, LocationLike] | None


@dataclass(frozen=True, eq=False)
class Release:
    """What a run came to; `tables`: each query's location (held: where it is staged) and number of rows."""

    _outcome: Outcome

    @property
    def name(self) -> str:
        """The release's name."""
        return self._outcome.release

    @property
    def attempt(self) -> str:
        """The attempt: 16 hexadecimal digits."""
        return self._outcome.attempt

    @property
    def state(self) -> str:
        """The state in the ledger: settled, or held until an officer approves."""
        return self._outcome.state

    @property
    def already(self) -> bool:
        """Whether it was published, or held, before this run, which then read and drew nothing."""
        return self._outcome.already

    @property
    def not_done(self) -> tuple[str, ...]:
        """What was asked and not done, because the release was drawn before this run: plain lines."""
        return self._outcome.not_done

    @property
    def path(self) -> str:
        """The folder or URI that holds release.json once it is published: what outsiders verify and read."""
        return str(self._outcome.out / self._outcome.release)

    @property
    def page(self) -> str | None:
        """The public site's front page; of a held release the staged one, for an officer. None: it has no site."""
        return str(self._outcome.page) if self._outcome.page.is_file() else None  # earlier builds staged none

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]]:
        """By query: path and rows."""
        return self._outcome.tables

    def to_json(self) -> dict[str, Any]:
        """Return what `prdp release --json` prints."""
        return self._outcome.to_json()

    def first_rows(self, number: int) -> dict[str, "pa.RecordBatch"]:
        """Return the first rows of each published table; nothing while they are held."""
        if self.state == "held":
            return {}
        folder = located(self.path, "release")
        files = {
            table["query"]: next(file for file in table["files"] if file["path"].endswith(".parquet"))
            for table in Manifest.read(folder)["tables"]
        }
        return {query: next(published_part(folder, file).iter_batches(number)) for query, file in files.items()}

    def read(self, names: CodeLists = None) -> "PublishedRelease":
        """Return the published tables, as `read_release` does; StateError while they are held."""
        return read_release(self.path, names=names)

    def export(self, to: str, out: str | Path | None = None, **options: Any) -> dict[str, Any]:
        """Write the published tables in another format, as `PublishedRelease.export` does."""
        return self.read().export(to, out, **options)

    def __repr__(self) -> str:
        return f"<prdp.Release {self.name}, attempt {self.attempt}: {self.state}>"


@dataclass(frozen=True, eq=False)
class PublishedRelease(Mapping[str, "pd.DataFrame"]):
    """The tables of a verified release by query: `release["employment"]` is a pandas DataFrame.

    A table has the query's keys as text with their leading zeros, where names are known a column `<key>_name` after
    each, then value, lower, upper and standard_error in units of the measure (integers are int64).
    """

    _published: Manifest
    _names: Mapping[str, Mapping[str, str]]

    @property
    def verified(self) -> Verified:
        """What was verified."""
        return Verified.of(self._published)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What release.json holds."""
        return self._published.facts

    def arrow(self, query: str) -> "pa.Table":
        """Return a table as an Arrow table."""
        import pyarrow as pa  # noqa: PLC0415 — verifying loads none

        return pa.concat_tables([self._read(file) for file in self._files(query)])

    def pandas(self, query: str) -> "pd.DataFrame":
        """Return a table as a pandas DataFrame; `release[query]` is the same."""
        frame: pd.DataFrame = self.arrow(query).to_pandas()
        return frame

    def dask(self, query: str) -> Any:
        """Return a table as a Dask DataFrame, with a partition for each file."""
        from pipeline.engines.dask import from_parts  # noqa: PLC0415

        files = {file["path"]: file for file in self._files(query)}
        return from_parts(lambda path: self._read(files[path]).to_pandas(), list(files))

    @property
    def policy(self) -> dict[str, Any]:
        """The release's policy.json: mechanisms, parameters, policy functions and losses at reference records."""
        policy: dict[str, Any] = json_in(self._published, "policy.json")
        return policy

    def export(self, to: str, out: str | Path | None = None, **options: Any) -> dict[str, Any]:
        """Write tables in another format; options and result are those of `export_tables`."""
        return export_tables(self._published.folder, to, out, **options)

    def _files(self, query: str) -> list[dict[str, Any]]:
        for table in self.manifest["tables"]:
            if table["query"] == query:
                return [file for file in table["files"] if file["path"].endswith(".parquet")]
        raise KeyError(f"{query}: no such table; there are {', '.join(self)}")

    def _read(self, file: Mapping[str, Any]) -> "pa.Table":
        return self._named(published_part(self._published.folder, file).read())

    def _named(self, table: "pa.Table") -> "pa.Table":
        import pyarrow as pa  # noqa: PLC0415

        columns = {}
        for name in table.column_names:
            columns[name] = table[name]
            if name in self._names:
                codes = table[name].combine_chunks().dictionary_encode()
                names = pa.array(list(map(self._names[name].get, codes.dictionary.to_pylist())), pa.string())
                columns[f"{name}_name"] = names.take(codes.indices)
        return pa.table(columns, metadata=table.schema.metadata)

    def __getitem__(self, query: str) -> "pd.DataFrame":
        return self.pandas(query)

    def __iter__(self) -> Iterator[str]:
        return iter([table["query"] for table in self.manifest["tables"]])

    def __len__(self) -> int:
        return len(self.manifest["tables"])

    def __repr__(self) -> str:
        return f"<prdp.PublishedRelease {self.verified.release}: {', '.join(self)}>"


def read_release(path: LocationLike, *, names: CodeLists = None) -> PublishedRelease:
    """Verify a published release and return its tables; StateError where a file is missing, changed or too many.

    Args:
        path: The folder or URI that holds release.json.
        names: Where names of codes come from: the plan, or {"naics": file, "county": file}, CSV with the header
            code,name. A release carries none; keys of another level than the lists' have none.
    """
    folder = location(path, "release")
    return PublishedRelease(Manifest.verified(folder), _names(names))


@documented
def product(
    releases: Annotated[Sequence[LocationLike] | LocationLike, Arg(OF_TABLES, "FOLDER", several=True)],
    out: NewFolder,
    *,
    product: Annotated[str | Path, Arg("a YAML file, or a name of conf/products", "PRODUCT")] = "cbp",
    year: Annotated[int | None, Arg("the year in the names of files", "YEAR", "year", default="the product's")] = None,
    reconciled: Annotated[LocationLike | None, Arg(SHOWN, "DIR")] = None,
    released: Annotated[bool, Arg("show what was released, also of a product of reconciled figures")] = False,
    since: Annotated[
        Sequence[LocationLike] | LocationLike,
        Arg("earlier releases, of which changes are since", "FOLDER", several=True),
    ] = (),
    sign: Annotated[bool, Arg("sign it with the site's key (prdp ledger admin keys create)")] = False,
) -> dict[str, Any]:
    """Write the files that users load, of published tables, as `prdp product`; it costs no record anything.

    `releases` are folders of releases, of reconciled tables, or of both, of which no two have tables of the same name.
    Where a release and its estimates are given, what was released stands beside estimates in Research tables.

    Returns:
        What product.json holds: the files with their SHA-256, and the releases they come from.

    Raises:
        PlanError: The product's file is wrong, no folder has a table that it needs, or others were reconciled.
        StateError: A folder's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    estimates = None if reconciled is None else location(reconciled, "reconciled tables")
    from pipeline.publication.product.products import make_product  # noqa: PLC0415 — products need more of Arrow and SciPy
    from pipeline.release.installation import site as settings  # noqa: PLC0415

    of, signing = locations(releases, "release"), settings().signing_asked(sign)
    earlier = locations(since, "since") if since else []
    return make_product(of, product, Path(out), year, estimates, since=earlier, as_released=released, signing=signing)


@documented
def site(
    release: ReleaseFolder,
    out: NewFolder,
    *,
    reconciled: Annotated[LocationLike | None, Arg(RECONCILED, "RECONCILED", option=False)] = None,
    product: Annotated[LocationLike | None, Arg(DOWNLOADS, "PRODUCT")] = None,
) -> dict[str, Any]:
    """Write a public site of a published release, with copies of its files, as `prdp export --to site`.

    It costs no loss. The release's folder is not changed; the front page of the site is its index.html.

    Returns:
        release, attempt, out, tables, those of them that are reconciled, derived tables, which have files but no pages,
        and the product's files (None: no product).

    Raises:
        PlanError: The reconciled folder, or the product, was made of other releases.
        StateError: A file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    estimates = None if reconciled is None else location(reconciled, "reconciled")
    loads = None if product is None else location(product, "product")
    from pipeline.publication.site.site_files import make_site  # noqa: PLC0415

    return make_site(location(release, "release"), Path(out), estimates, loads)


@documented
def export_tables(
    folder: Annotated[
        LocationLike | Location, Arg("the folder or URI that holds release.json or reconciled.json", "OUT/RELEASE")
    ],
    to: Annotated[str, Arg("format of the tables", choices=(*EXPORTS, "site"), option=True)],
    out: Annotated[str | Path | None, Arg(NEW_FOLDER, "DIR", option=True, default="<release>-<format>")] = None,
    *,
    tables: Annotated[Sequence[str], Arg("this table alone", "TABLE", many=True, flag="table")] = (),
    agency: Annotated[str | None, Arg("sdmx: who maintains the structures", "ID", default="PRDP")] = None,
    year: Annotated[int | None, Arg("sdmx: the year of the figures, as the dimension TIME_PERIOD", kind="year")] = None,
    reconciled: Annotated[LocationLike | None, Arg(RECONCILED, "RECONCILED", option=False)] = None,
    product: Annotated[LocationLike | None, Arg(DOWNLOADS, "PRODUCT")] = None,
) -> dict[str, Any]:
    """Write tables in another format, as `prdp export --json`; what is published already costs no loss.

    To "site" it writes a public site, as `prdp.site`; `reconciled` and `product` are of a site alone.

    Returns:
        release, attempt, format, out and tables: by query its path and rows. Codes are text in every format.
    """
    if to == "site":
        if tables or agency is not None or year is not None:
            raise PlanError(f"{arg('to', 'site')}: a site has all tables: give no tables, agency or year")
        target = out or f"{Path(str(folder)).name}-site"
        return site(str(folder), target, reconciled=reconciled, product=product)
    if reconciled is not None or product is not None:
        raise PlanError(f"a reconciled folder and {arg('product')} go with {arg('to', 'site')} alone")
    read = folder if isinstance(folder, Location) else located(folder, "OUT/RELEASE")
    return export(read, to, None if out is None else Path(out), tables, agency=agency, year=year)


def _names(source: Any) -> dict[str, dict[str, str]]:
    """Return the names of codes by level."""
    lists = getattr(source, "code_lists", source) or {}
    named: dict[str, dict[str, str]] = {}
    for key, path in lists.items():
        try:
            with input_lines(Path(path)) as lines:
                rows = [row for row in csv.DictReader(lines) if row.get("code") and row.get("name")]
            if rows:
                named[level_of(key, rows[0]["code"])] = {row["code"]: row["name"] for row in rows}
        except (OSError, ValueError, csv.Error):
            raise PlanError(f"{path}: no list of {key} codes; name a CSV file with the header code,name") from None
    return named
