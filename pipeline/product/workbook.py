"""Published tables as Excel workbooks, one a table: figures with codes as text and their names, and what they mean."""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, require_package
from pipeline.product.published_folder import Published

MOST_ROWS = (1 << 20) - 1  # of a sheet, beside its header
EXACT = 10**15 - 1  # a workbook's numbers have 15 digits


def write_workbooks(published: Published, home: Path) -> dict[str, str]:
    """Write <table>.xlsx for every table, sheets figures and about; return each table's file.

    Whole numbers of more than 15 digits, which a workbook would round, and infinite ones are text. Raises PlanError
    where a table has more rows than a sheet can hold, before anything is written.
    """
    xlsxwriter = require_package("xlsxwriter", "--to xlsx")
    for name, table in published.tables.items():
        if table.rows > MOST_ROWS:
            raise PlanError(
                f"table {name}: its {table.rows:,} rows are more than the {MOST_ROWS:,} of a workbook's sheet: choose "
                "others by --table, or take --to csv or duckdb"
            )
    for name in published.each():
        with xlsxwriter.Workbook(str(home / f"{name}.xlsx"), {"constant_memory": True}) as book:
            bold = book.add_format({"bold": True})
            _figures(book.add_worksheet("figures"), published, name, bold)
            sheet = book.add_worksheet("about")
            sheet.set_column(0, 0, 24)
            sheet.set_column(1, 1, 120)
            for row, (what, text) in enumerate(_about(published, name)):
                sheet.write_string(row, 0, what, bold)
                sheet.write_string(row, 1, text)
    return {name: f"{name}.xlsx" for name in published.tables}


def _figures(sheet: Any, published: Published, table: str, bold: Any) -> None:
    """Write the rows of a table: after each key's code its name, where its list has names."""
    schema, batches = published.rows(table)
    keys = published.described[table]["schema"]["primaryKey"]
    listed = {level: published.names(level) for level in keys}
    names = {level: codes for level, codes in listed.items() if any(codes.values())}
    columns = [each for name in schema.names for each in ((name, f"{name}_name") if name in names else (name,))]
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, len(columns) - 1, 16)
    sheet.autofilter(0, 0, published.tables[table].rows, len(columns) - 1)
    for at, name in enumerate(columns):
        sheet.write_string(0, at, name, bold)
    row = 0
    for batch in batches:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row += 1
            at = 0
            for name, value in zip(schema.names, values, strict=True):
                _write(sheet, row, at, value)
                at += 1
                if name in names:
                    sheet.write_string(row, at, names[name][value])
                    at += 1


def _write(sheet: Any, row: int, column: int, value: str | float) -> None:
    if isinstance(value, str):
        sheet.write_string(row, column, value)  # as it stands: neither a number nor a formula
    elif isfinite(value) and (isinstance(value, float) or abs(value) <= EXACT):
        sheet.write_number(row, column, value)
    else:
        sheet.write_string(row, column, str(value))


def _about(published: Published, table: str) -> Iterator[tuple[str, str]]:
    """Yield what the sheet about says, line by line."""
    package, about = published.package or {}, published.described[table]
    yield "title", about["title"]
    yield "description", about["description"]
    for key in ("unit", "statistic", "where", "interval"):
        if about.get(key) is not None:
            yield key, str(about[key])
    for text in about.get("mechanisms", ()):
        yield "mechanism", text
    yield "release", f"{package['release']}: {package['title']}"
    yield "plan_digest", package["plan_digest"]
    for each in package.get("contributors", ()):
        yield "contact", each["title"]
    yield from ((column, note) for column, note in published.notes(table).items() if column)
    yield "numbers", "whole numbers of more than 15 digits, and inf, are text: a workbook holds neither"
