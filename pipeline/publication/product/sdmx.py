"""Published tables for statistical offices' tools: SDMX-CSV 2.0, and the structure message that says what they are.

Every code of a table is in its list, where coarser levels stand as parents. A code is its own identifier; signs that
SDMX does not allow there stand as $ and their hexadecimal number (UTF-8): the class 10+ is 10$2B.
"""

import re
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pipeline.base.errors import PlanError, in_a_line
from pipeline.plan.keys import Dimension
from pipeline.publication.product.sdmx_structure import (
    ATTRIBUTES,
    MEASURE,
    TIME,
    VERSION,
    Component,
    Flow,
    ListedCode,
    scoped,
    structure_message,
)
from pipeline.publication.release_folder import Published
from udfs.records.codes import OTHER

STRUCTURE: Final = "sdmx-structure.json"
AGENCY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*")
TYPES: Final = {"integer": "Long", "number": "Double"}
TAKEN: Final = {
    *ATTRIBUTES,
    *TIME,
    MEASURE,
    "STRUCTURE",
    "STRUCTURE_ID",
    "STRUCTURE_NAME",
    "ACTION",
    "SERIES_KEY",
    "OBS_KEY",
}
FREE, NORMAL, ESTIMATED = "F", "A", "E"  # for publication; a normal value; an estimated one: the codes of SDMX


def write_sdmx(published: Published, home: Path, *, agency: str = "PRDP", year: int | None = None) -> dict[str, str]:
    """Write <table>.csv for every table, and sdmx-structure.json of all of them; return each table's file.

    `agency` maintains the structures; `year` is the dimension TIME_PERIOD, which is absent without it. Raises PlanError
    where they are none, or two tables differ in signs alone that SDMX does not allow.
    """
    if not AGENCY.fullmatch(agency):
        raise PlanError(
            f"--agency {in_a_line(agency)}: use letters, digits, '_' and '-', a letter first, such as CENSUS"
        )
    if year is not None and not 1900 <= year <= 2999:
        raise PlanError(f"--year {year}: must be a year, such as 2023")
    scope = "_".join(map(identifier, published.facts.get("releases", ())))
    scope = f"RECONCILED_{scope}" if scope else identifier(published.name)
    flows = {name: _flow(published, name, year) for name in published.tables}
    named: dict[str, str] = {}
    for name, flow in flows.items():
        if (other := named.setdefault(flow.id, name)) != name:
            raise PlanError(f"tables {other} and {name}: both are {flow.id} in SDMX: choose one of them by --table")
    levels = sorted({each.level for flow in flows.values() for each in flow.components if each.level})
    lists = {level: listed_codes(published, level) for level in levels}
    title = (published.package or {})["title"]
    (home / STRUCTURE).write_bytes(structure_message(agency, scope, title, list(flows.values()), lists))
    for name in published.each():
        flow = flows[name]
        _write_rows(published, name, flow, home / f"{name}.csv", f"{agency}:DF_{scoped(scope, flow.id)}({VERSION})")
    return {name: f"{name}.csv" for name in published.tables}


def identifier(name: str) -> str:
    """Return a name of prdp's as a part of an identifier of SDMX."""
    return re.sub(r"[^A-Z0-9_]", "_", name.upper())


def code_identifier(code: str) -> str:
    """Return the identifier of a code: no two codes have the same."""
    return re.sub(r"[^A-Za-z0-9_@-]", lambda sign: "".join(f"${byte:02X}" for byte in sign[0].encode()), code)


def listed_codes(published: Published, level: str) -> list[ListedCode]:
    """Return the codes of a level, after those that they roll up to, level by level: each names its parent.

    `other` is one code of all these levels. A coarser level that shares codes with a finer one, as five digits may be
    an area's and a county's, is left out, and all beyond it.
    """
    dimension = published.structure.domain.dimension(level)
    listed: dict[str, ListedCode] = {}
    above: str | None = None
    for at in reversed(_rolled_up(dimension, level)):
        names = published.names(at)
        parents: list[str | None] = [None] * len(dimension.index(at))
        if above is not None and (parent_of := dimension.between(at, above)) is not None:
            parents = [code_identifier(dimension.level_codes(above)[each]) for each in parent_of]
        for code, parent in zip(dimension.level_codes(at), parents, strict=True):
            listed.setdefault(code, ListedCode(code_identifier(code), names.get(code) or code, parent))
        above = at
    return list(listed.values())


def _rolled_up(dimension: Dimension, level: str) -> list[str]:
    """Return a level, and the coarser ones, one above the other, that share no code with finer ones but `other`."""
    found, codes = [level], set(dimension.level_codes(level))
    while (up := _coarser(dimension, found[-1])) is not None:
        of_up = set(dimension.level_codes(up))
        if codes & of_up - {OTHER}:
            break
        found.append(up)
        codes |= of_up
    return found


def _coarser(dimension: Dimension, level: str) -> str | None:
    """Return the finest level that groups all codes of a level: a built-in one, else a column of the key's list."""
    codes = len(dimension.index(level))
    for levels in (dimension.built_in, tuple(dimension.further)):
        sizes = {each: len(dimension.index(each)) for each in levels if dimension.between(level, each) is not None}
        if able := [each for each, size in sizes.items() if size < codes]:
            return max(able, key=sizes.__getitem__)
    return None


def _flow(published: Published, name: str, year: int | None) -> Flow:
    about, package = published.described[name], published.package or {}
    keys, components = about["schema"]["primaryKey"], []
    for field in about["schema"]["fields"]:
        what, column = field["description"].removesuffix(f"; in {about['unit']}"), field["name"]
        if column in keys:
            name_of_key = identifier(column) + "_KEY" * (identifier(column) in TAKEN)
            components.append(Component(name_of_key, field["title"], level=column))
        else:
            name_of_figure = MEASURE if column == "value" else identifier(column)
            title = column.replace("_", " ").capitalize()
            components.append(Component(name_of_figure, title, what, column=column, text_type=TYPES[field["type"]]))
    constants = {"OBS_STATUS": ESTIMATED if "releases" in published.facts else NORMAL, "CONF_STATUS": FREE}
    constants |= {"UNIT_MEASURE": about["unit"], "UNIT_MULT": "0", "CONFIDENCE_LEVEL": str(about["interval"])}
    notes = [
        ("RELEASE", package["release"]),
        ("PLAN_DIGEST", package["plan_digest"]),
        ("STATISTIC", about["statistic"]),
    ]
    notes += [("FILTER", about["where"])] if about["where"] else []
    notes += [("MECHANISM", text) for text in about["mechanisms"]]
    notes += [("CONTACT", each["title"]) for each in package.get("contributors", ())]
    period = {} if year is None else {"TIME_PERIOD": str(year)}
    return Flow(identifier(name), about["title"], about["description"], tuple(components), constants, period, notes)


def _write_rows(published: Published, table: str, flow: Flow, path: Path, flow_id: str) -> None:
    _, batches = published.rows(table)
    keys = {each.level: each.id for each in flow.components if each.level}
    figures = {each.column: each.id for each in flow.components if each.column}
    before = {"STRUCTURE": "dataflow", "STRUCTURE_ID": flow_id, "ACTION": "I"}
    header = [*before, *keys.values(), *flow.period, *figures.values(), *flow.constants]
    columns = pa.schema([(name, pa.string()) for name in header])
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
    with path.open("wb") as file:
        file.write((",".join(header) + "\n").encode())  # plain: quotes around names are what some readers stumble over
        with pa.csv.CSVWriter(file, columns, write_options=options) as writer:
            for batch in batches:
                texts = {name: _identifiers(batch.column(level)) for level, name in keys.items()}
                texts |= {name: _numbers(batch.column(column)) for column, name in figures.items()}
                constant = {**before, **flow.period, **flow.constants}
                texts |= {name: pa.repeat(text, batch.num_rows) for name, text in constant.items()}
                writer.write(pa.table([texts[name] for name in header], schema=columns))


def _identifiers(codes: pa.Array) -> pa.Array:
    coded = codes.dictionary_encode()
    return pa.array(list(map(code_identifier, coded.dictionary.to_pylist())), pa.string()).take(coded.indices)


def _numbers(figures: pa.Array) -> pa.Array:
    return pc.replace_substring(figures.cast(pa.string()), "inf", "INF")  # as XML Schema writes it
