"""The pages of a public site: the front page, and one for each table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.accounting.accountant import NAME
from pipeline.base.plain import Table, rendered
from pipeline.engines.writers import PARQUET
from pipeline.plan.model import VALUES, Plan, Query
from pipeline.publication.description import CODES, COLUMNS, PACKAGE, SITE, Description, Facts, mechanisms_of, oddities
from pipeline.publication.policy_document import composition, named
from pipeline.publication.site.figures import Coarse, Figures, Names, clearest, figure, state_grid, with_bars
from pipeline.publication.site.packed import PART
from pipeline.storage.location import Location
from udfs.numbers.exact import bound_text, exact, up_probability

INDEX = "data/index.js"  # in a site: what its page of places needs to know
FIRST_ROWS = 50  # cells that are in a page itself
LARGEST = 12  # figures of a chart
OF_RECONCILED = (
    ("published", "in reconciled files alone, whose value is the estimate: the published figure"),
    ("display", "in reconciled files alone: the estimate in whole units, which add up too"),
)
PRODUCT_FILES = {  # what a product's files are, by folder
    ("layouts",): "In the agency's record layouts",
    ("README.md", "dictionary.csv", "dictionary.md"): "What is withheld, and what every column means",
    ("basic",): "Basic tables: names of codes, rounded figures, coefficients of variation, flags",
    ("research",): "Research tables: every figure with its variance, nothing rounded or withheld",
}


CSV = (".csv", ".csv.gz")


def front_page(
    facts: Facts, site: str = "", published: Mapping[str, Any] | None = None, notes: Sequence[str] = (), front: str = ""
) -> str:
    """Return the front page.

    `site`: the path to the folder of the site's other pages. `published`: of a published release its date, attempt,
    head and files, as `published_page` gives them. `notes`: what readers must know first, such as that a later release
    corrects it. `front`: the path to the page that lists the files, where this one does not.
    """
    records = facts.get("records", "records")  # sites of earlier builds do not say it
    lead = f"Totals of confidential {records} ({facts['dataset']}), with noise that protects each {facts['unit']}."
    losses = facts["losses"]
    shares = [
        {"label": loss["at"], "share": round(100 * loss["power"], 1), "power": _probability(loss["power"])}
        for loss in losses
    ]
    return rendered(
        "site_home.html",
        title=facts["title"],
        site=site,
        facts=facts | {"losses": shares},
        lead=facts["about"] or lead,
        published=published,
        notes=notes,
        front=front,
        coverage=coverage(facts),
        size=f"{100 * losses[0]['size']:g}" if losses else "",
        plain=facts.get("plain"),
        ask=facts.get("ask"),
        losses=_losses(facts),
    )


def published_page(
    facts: Facts, site: str, manifest: Mapping[str, Any], notes: Sequence[str] = (), signer: str | None = None
) -> str:
    """Return the front page of a published release, with the files, dates and digests that its manifest names.

    `signer`: the fingerprint of the key that signed the manifest.
    """
    titles = {table["name"]: table["title"] for table in facts["tables"]}
    home = manifest.get("home", f"{manifest['attempt']}/")  # a copy of the release's files has no attempt's folder
    listed = {table["query"]: files_of(manifest, table) for table in manifest["tables"]}
    csv = {
        table["query"]: _link(file)
        for table in manifest["tables"]
        for file in (*listed[table["query"]], *whole_csv(manifest, home, table))
        if file["path"].endswith(CSV)
    }
    tables = [
        {"name": name, "title": titles[name], "files": [_link(file) for file in files]}
        for name, files in listed.items()
        if name in titles
    ]
    dated = {key: manifest[key] for key in ("date", "attempt", "ledger_head")}
    beside = [path for path in (file["path"] for file in manifest["files"]) if path.startswith(home)]
    lists = [path for path in beside if path.startswith(f"{home}{CODES}/")]
    described = {"package": f"{home}{PACKAGE}", "lists": sorted(lists)} if f"{home}{PACKAGE}" in beside else None
    product = manifest.get("product") and _product(manifest["product"])
    return front_page(
        asking(facts) if f"{home}{SITE}/{INDEX}" in beside else facts,
        site,
        dated
        | {"home": home, "tables": tables, "csv": csv, "described": described, "product": product, "signer": signer}
        | {"approvals": [each["role"] for each in manifest.get("approvals", ())]},
        notes,
    )


def place_page(facts: Facts) -> str:
    """Return the page of a place, an industry, or other codes, which a script fills from the tables' own."""
    about = asking(facts)
    return rendered("site_place.html", title=f"Figures of {about['ask']}", site="", headed=True, facts=about)


def asking(facts: Facts) -> Facts:
    """Return facts for a page that asks for codes, which takes a site's INDEX: `ask` says of which keys.

    `plain` is the table for readers without scripts: of the states, with the fewest cells, else the smallest of all.
    """
    tables = sorted(facts["tables"], key=lambda each: ("state" not in each["by"], not each["cells"], each["cells"]))
    levels = {level: facts["levels"][level]["label"] for each in tables for level in each["by"] if level != "nation"}
    if any(level.startswith("naics") for level in levels):
        ask = "a place, an industry, or both"
    else:
        *first, last = sorted(label[:1].lower() + label[1:] for label in levels.values()) or ["kind"]
        ask = f"one {', '.join(first)} or {last}" if first else f"one {last}"
    return facts | {"plain": tables[0], "ask": ask}


def listed_table(facts: Facts, about: Facts, figures: Figures, axes: Sequence[Facts]) -> Facts:
    """Return what the page of places needs to know of a table, all of whose figures are in its scripts."""
    groups = sorted({group["level"] for axis in axes for group in axis["groups"]})
    own = {key: about[key] for key in ("title", "by", "statistic", "where")}
    return own | {"groups": groups} | (data_of(about, figures, coverage(facts | dict(about)), None) or {})


def files_of(manifest: Mapping[str, Any], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table's files in all formats, as a release's manifest names them."""
    text = f"{manifest['attempt']}/tables/{table['query']}.csv"
    return [*table["files"], *(file for file in manifest["files"] if file["path"] == text)]


def _link(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file of a manifest with its name, and its path from the front page, where it does not say them."""
    return {"name": file["path"].partition("/tables/")[2], "href": file["path"]} | dict(file)


def whole_csv(manifest: Mapping[str, Any], home: str, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the file of the site that holds a whole table, where a manifest names it."""
    path = f"{home}{SITE}/tables/{table['query']}.csv.gz"
    return [file for file in manifest["files"] if file["path"] == path]


def _product(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a product's title and files for a template, by kind: what users load first."""
    files = [file | {"name": file["path"]} for file in manifest["files"]]
    kinds = [
        (text, [file for file in files if file["path"].partition("/")[0] in folders])
        for folders, text in PRODUCT_FILES.items()
    ]
    return {
        "title": manifest["title"],
        "reconciled": "reconciled" in manifest,
        "releases": [each["release"] for each in manifest["releases"]],
        "kinds": [(text, listed) for text, listed in kinds if listed],
    }


def table_page(
    facts: Facts, about: Mapping[str, Any], figures: Figures, links: Mapping[str, Any], instead: Coarse | None = None
) -> Callable[..., str]:
    """Return what makes the page of a table, of which `about` tells, from its figures, all of them or the first.

    It takes the table's own `files`, which may be written meanwhile; empty where `front` alone lists them. `links`:
    `front`, the path to the page that lists all files, and `maps`, the table's levels that there are maps of.
    `instead`: what is shown, where these are the first figures of too many.
    """
    names: Names = {level: each["names"] for level, each in facts["levels"].items()}
    shown, of = (figures, about) if instead is None else (instead.figures, instead.about)
    rows = _first(shown, names)
    chart = with_bars(rows[:LARGEST]) if shown.complete else []
    on_map = links["maps"] if shown.complete else []
    fewer = [
        each for each in facts["tables"] if each["statistic"] == about["statistic"] and each["cells"] < about["cells"]
    ]
    return partial(
        rendered,
        "site_table.html",
        title=about["title"],
        site="../",
        facts=facts,
        about={"other": None, "reconciled": False, "nonnegative": False} | dict(about),
        coverage=coverage(facts | dict(of)),
        of=of,
        instead=instead,
        first=None if instead is None else _body(facts, about, figures, _first(figures, names)),
        hero=chart[0] if chart else None,
        sole=of["cells"] == 1,
        chart=chart,
        grid=state_grid(shown, names) if "state" in links["maps"] else None,
        map=on_map[0] if on_map else None,
        body=_body(facts, of, shown, rows),
        columns=_columns(facts, about),
        others=fewer,
        **links,
        data=data_of(of, shown, coverage(facts | dict(of)), on_map[0] if on_map else None),
    )


def _first(figures: Figures, names: Names) -> list[dict[str, Any]]:
    first = figures.largest(FIRST_ROWS) if figures.complete else range(min(len(figures), FIRST_ROWS))
    return [figures.row(cell, names) for cell in first]


def _body(facts: Facts, about: Mapping[str, Any], figures: Figures, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    labels = [facts["levels"][level]["label"] for level in about["by"]]
    total = figure(figures.columns["value"].sum().item()) if about.get("reconciled") and figures.complete else None
    return {"labels": labels, "rows": with_bars(rows), "unit": about["unit"], "total": total}


def withdrawn_page(title: str, note: Mapping[str, Any]) -> str:
    """Return the page that takes the front page's place when a release is withdrawn."""
    return rendered("site_withdrawn.html", title=title, note=note)


def coverage(facts: Facts) -> str:
    """Return the probability of the intervals in per cent."""
    return f"{float(100 * exact(facts['interval'])):.4g}"


def data_of(about: Mapping[str, Any], figures: Figures, covered: str, level: str | None) -> dict[str, Any] | None:
    """Return what scripts need to know of a table whose cells are all in its own; None for other tables.

    `covered`: the coverage of intervals in per cent. `level`: what a map shows, if there is one.
    """
    if not figures.complete or not len(figures):
        return None
    return {
        "name": about["name"],
        "unit": about["unit"],
        "nonnegative": figures.nonnegative,
        "adds": bool(about.get("reconciled")),
        "coverage": covered,
        "cells": about["cells"],
        "parts": -(-about["cells"] // PART),
        "part": PART,
        "shown": FIRST_ROWS,
        "whole": [name for name, column in figures.columns.items() if np.issubdtype(column.dtype, np.integer)],
        "listed": figures.cells.listed is not None,
        "at": figures.codes(clearest(figures, level)) if level else {},
    }


def _columns(facts: Facts, about: Mapping[str, Any]) -> Table:
    keys = [(level, f"{facts['levels'][level]['label']}: its code, text", "") for level in about["by"]]
    meanings = [*COLUMNS, *(OF_RECONCILED if about.get("reconciled") else ())]
    return Table(("column", "meaning", "unit"), [*keys, *((name, what, about["unit"]) for name, what in meanings)])


def _losses(facts: Facts) -> Table:
    unit = facts["unit"]
    rows = [
        (
            loss["at"],
            bound_text(loss["rho"], 4),
            "infinite" if loss["epsilon"] is None else bound_text(loss["epsilon"], 4),
            f"{loss['delta']:g}",
            _probability(loss["power"]),
        )
        for loss in facts["losses"]
    ]
    return Table((f"{unit} with", "rho", "ε", "at δ", "detected at most"), rows, range(1, 5))


def _probability(power: float) -> str:
    text = up_probability(power)
    return "> 99.99 %" if text.startswith(">") else f"{100 * float(text):.2f} %"


# report.html of a release: one self-contained page on what the tables are, how noisy, and what is promised.
#
# It reads the plan and published files alone, so nothing confidential can enter it.

LARGEST_SHOWN = 10

OF_RECORDS = (
    "The privacy loss of each {unit} is a public function of its own size: P(Δ), Δ being its influence. λ is the step "
    "of the noise's lattice (policy.json). Upper bounds of the loss (rho) for {units} of some sizes"
)
SMALLER_RECORDS = "; a smaller {unit} loses no more, a larger one may:"
OF_FIRMS = (
    "The privacy loss of each {unit} is a public function of its own {records}: in each cell P(Δ), Δ being what they "
    "add to it together, and these add up over cells and tables. λ is the step of the noise's lattice (policy.json). "
    "Upper bounds of the loss (rho) for {units} of some {records}"
)
SMALLER_FIRMS = "; one with fewer or smaller {records} loses no more, any other may:"
NO_LARGER = "all no larger, together"


def report_page(description: Description, staged: Location) -> str:
    """Return the page for the described tables, which lie in `staged`/tables; reads nothing confidential."""
    plan, policy = description.plan, description.policy
    owner = plan.dataset.owner
    protection = "per-record differential privacy"
    if owner is not None:
        (unit, units), records = plan.protected, plan.unit_names.record[1]
        protection = f"differential privacy of whole {units}: each {unit} is all {records} with one value of {owner}"
    largest = ((query.name, _largest(query, staged / "tables")) for query in plan.queries)
    return rendered(
        "release.html",
        title=plan.release,
        dataset=plan.dataset.name,
        protection=protection,
        tables=_tables(plan),
        columns=Table(("column", "meaning"), COLUMNS),
        coverage=f"{float(plan.interval):.4g}",
        oddities=oddities(plan),
        unit=plan.protected[0],
        records=plan.unit_names.record[1],
        of_losses=_of_losses(plan, policy),
        losses=_loss_table(policy),
        policies=_policies(policy),
        composition=composition(plan),
        largest=[(query, table) for query, table in largest if table is not None],
        guarantee=policy["guarantee"],
        plan_digest=plan.digest,
    )


def _tables(plan: Plan) -> Table:
    rows = [
        (
            query.name,
            named(query.statistic.label, plan.unit_names),
            " × ".join(query.by) + "".join(f", {level} in {', '.join(codes)}" for level, codes in query.where.items()),
            f"{plan.domain.query_cells(query.by, query.where).size:,}",
            "; ".join(mechanisms_of(query)),
        )
        for query in plan.queries
    ]
    return Table(("table", "statistic", "by", "cells", "mechanism"), rows, numbers=[3])


def _loss_table(policy: dict[str, Any]) -> Table | None:
    """Return the losses of each query, and of all together, at the references; None without references."""
    references = policy["references"]
    names = [query["name"] for query in policy["queries"]]
    rows = [(name, *(_loss(reference["queries"][name]) for reference in references)) for name in names]
    rows.append((NAME, *(_loss(reference["left_out_test"]) for reference in references)))
    rows.append(("together", *(_loss(reference["total"]) for reference in references)))
    if "of_classes" in policy["sum"]:
        rows.append((NO_LARGER, *(_loss(each.get("no_larger", each["total"])) for each in references)))
    header = ["table", *(_reference(reference["at"]) for reference in references)]
    return Table(header, rows, range(1, len(header))) if references else None


def _of_losses(plan: Plan, policy: dict[str, Any]) -> str:
    """Return what the losses are; where classes of a measure decide, smaller records may lose more."""
    text, smaller = (OF_RECORDS, SMALLER_RECORDS) if plan.dataset.owner is None else (OF_FIRMS, SMALLER_FIRMS)
    (unit, units), records = plan.protected, plan.unit_names.record[1]
    names = {"unit": unit, "units": units, "records": records}
    if "of_classes" in policy["sum"]:
        of_classes = policy["sum"]["of_classes"].replace("`no_larger`", f"“{NO_LARGER}”")
        return f"{text.format(**names)}. {of_classes}"
    return (text + smaller).format(**names)


def _reference(at: dict[str, Any] | list[dict[str, Any]]) -> str:
    records = at if isinstance(at, list) else [at]
    return "; ".join(", ".join(f"{name} {value}" for name, value in record.items()) for record in records)


def _loss(loss: dict[str, Any]) -> str:
    return bound_text(loss["rho"], 4)


def _policies(policy: dict[str, Any]) -> Table:
    rows = [
        (" ".join(filter(None, (query["name"], part.get("part")))), part["influence"], part["policy"]["rho"])
        for query in policy["queries"]
        for part in query.get("parts", [query])
    ]
    test = policy["left_out_test"]
    return Table(("table", "Δ", "P(Δ)"), [*rows, (NAME, test["influence"], test["policy"]["rho"])])


def _largest(query: Query, tables: Location) -> Table | None:
    largest = PARQUET.largest(tables, query.name, LARGEST_SHOWN)
    if largest is None:
        return None
    cells = largest.to_pylist()
    rows = [[cell[key] for key in query.by] + [_shown(cell[name]) for name in VALUES] for cell in cells]
    columns = (*query.by, *VALUES)
    return Table(columns, rows, range(len(query.by), len(columns)))


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) < 1e15 else f"{value:.3g}"
