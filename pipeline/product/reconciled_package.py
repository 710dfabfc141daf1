"""What a reconciled folder says of its tables: the descriptions of the releases, with the columns of estimates."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.release.export import description_in
from pipeline.release.manifest import read_manifest
from pipeline.report.data_package import MEANINGS, MEDIA, file_notes, package_text
from pipeline.report.site.facts import CODES, PACKAGE
from pipeline.storage.location import Location

ESTIMATED = {  # column → type and meaning
    "value": ("number", "the estimate of the cell's total from all tables together"),
    "lower": ("number", MEANINGS["lower"]),
    "upper": ("number", MEANINGS["upper"]),
    "standard_error": ("number", "the size of the estimate's error, or an upper bound of it"),
    "published": (None, "the published figure"),  # of the type that it had
    "display": ("integer", "the estimate in whole units that are not negative, which add up too"),
}


@dataclass(frozen=True, eq=False)
class Description:
    """What the releases that are reconciled say of themselves.

    Attributes:
        package: What is said of all of them together, but for the tables.
        resources: What they say of each table and list of codes, by name.
        lists: Files of lists of codes, by the name of their resource.
        interval: The coverage of the estimates' intervals.
    """

    package: dict[str, Any]
    resources: dict[str, dict[str, Any]]
    lists: dict[str, bytes]
    interval: float

    @classmethod
    def of(cls, folders: Iterable[Location], interval: float) -> "Description | None":
        """Return the description of verified releases; None where an earlier build left one of them without."""
        packages: list[dict[str, Any]] = []
        lists: dict[str, bytes] = {}
        for folder in folders:
            manifest = read_manifest(folder)
            files = {file["path"].removeprefix(f"{manifest['attempt']}/"): file for file in manifest["files"]}
            package, codes = description_in(folder, files)
            if package is None:
                return None
            packages.append(package)
            lists |= codes
        together = packages[0] | {
            "name": "reconciled",
            "title": f"{packages[0]['title']}: tables that add up",
            "release": ", ".join(each["release"] for each in packages),
            "plan_digest": ", ".join(each["plan_digest"] for each in packages),
        }
        known = {each["name"]: each for package in packages for each in package["resources"]}
        return cls(together, known, lists, interval)

    def notes(self, table: str) -> dict[str, str]:
        """Return what the Parquet file of a table's estimates says of it."""
        return file_notes(self.package, _estimated(self.resources[table], self.interval, "parquet"))

    def files(self, tables: Collection[str], formats: Collection[str]) -> dict[str, bytes]:
        """Return datapackage.json and lists of codes, by path; `formats`: those of the tables' files."""
        resources = [_estimated(self.resources[name], self.interval, each) for name in tables for each in formats]
        levels = {level for each in resources for level in each["schema"]["primaryKey"]}
        used = sorted(f"{CODES}/{level}" for level in levels)
        package = self.package | {"resources": [*resources, *(self.resources[name] for name in used)]}
        return {PACKAGE: package_text(package)} | {f"{name}.csv": self.lists[name] for name in used}


def _estimated(released: dict[str, Any], interval: float, kind: str) -> dict[str, Any]:
    """Return what is said of a table's estimates in files of one format, of what the release says of it."""
    name, fields = released["name"], {field["name"]: field for field in released["schema"]["fields"]}
    keys = [fields[level] for level in released["schema"]["primaryKey"]]
    columns = [
        {
            "name": column,
            "type": of or fields["value"]["type"],
            "description": f"{meaning}; in {released['unit']}",
            "unit": released["unit"],
        }
        for column, (of, meaning) in ESTIMATED.items()
    ]
    return released | {
        "name": name if kind == "parquet" else f"{kind}/{name}",
        "path": f"tables/{name}.{kind}",
        "format": kind,
        "mediatype": MEDIA[kind],
        "description": f"{released['description']} Estimated from all tables together (prdp reconcile).",
        "interval": interval,
        "schema": released["schema"] | {"fields": [*keys, *columns]},
    }
