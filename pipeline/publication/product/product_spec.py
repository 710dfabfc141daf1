"""A product's file: which tables and layouts are made of which released tables (docs/product.md).

Names in it may hold {yy} and {year}, the product's year, and the names of its own `each`, which stands for one entry
for each combination of their values.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError

from pipeline.base.errors import PlanError, arg
from pipeline.plan.domain.published_lists import UnreadableFile
from pipeline.plan.messages import Mistake, lines_of, shape_mistakes
from pipeline.plan.plan_text import PRODUCT, KeyPath, read_text
from pipeline.plan.values import LevelName, Name, Positive, Spec, Text, Year, number_type
from pipeline.publication.product.derived_columns import (
    ConcordanceSpec,
    DerivedSpec,
    NoteSpec,
    NumbersSpec,
    WithholdSpec,
)
from pipeline.storage.staging import safe_name

HOME: Final = Path(__file__).resolve().parents[3] / "conf" / "products"
COLUMNS: Final = ("_name", "_variance", "_published", "_sd", "_cv", "_flag", "_low", "_high")  # of further columns
WITHHELD: Final = "S"  # County Business Patterns' letter for what does not meet publication standards
Each = dict[Name, Annotated[list[Text], Field(min_length=1)]]
Texts = Text | Annotated[list[Text], Field(min_length=1)]
Values = Annotated[dict[str, Texts], Field(min_length=1)]  # by measure, a table, or several: the first that there is
if TYPE_CHECKING:
    Whole = Fraction
else:
    Whole = number_type(
        "a whole number from 1 to 10⁹", lambda x: x.denominator == 1 and 1 <= x <= 10**9, minimum=1, maximum=10**9
    )


class LevelSpec(Spec):
    """What the codes of a level are: `names` are lists (header code,name), `texts` codes and their names."""

    meaning: Text
    names: list[Text] = Field(default_factory=list)
    texts: dict[str, Text] = Field(default_factory=dict)


class MeasureSpec(Spec):
    """What is released, and in which unit."""

    meaning: Text
    unit: Text


class BasicSpec(WithholdSpec):
    """Rules of the Basic tables: values are multiples of `round`."""

    round: Whole = Fraction(1)


class FlagSpec(Spec):
    """A letter for coefficients of variation under so many percent; the last stands for all others."""

    flag: Text
    meaning: Text
    under: Positive | None = None


class TableSpec(Spec):
    """A table, of released tables with the same cells."""

    name: Text
    by: list[Text] = Field(default_factory=list)  # the order of its keys, where it is not that of the first table
    each: Each = Field(default_factory=dict)
    values: Values

    def expanded(self, fixed: Mapping[str, str]) -> Iterator["TableSpec"]:
        """Yield the table for each combination of `each`."""
        for names in combinations(self.each, fixed):
            by, values = [filled_in(level, names) for level in self.by], _filled(self.values, names)
            yield TableSpec.model_construct(name=filled_in(self.name, names), by=by, values=values)


class RowsSpec(Spec):
    """Some rows of a layout: a row for each combination of codes of the levels `by`, and its released tables."""

    by: Annotated[list[Text], Field(min_length=1)]
    each: Each = Field(default_factory=dict)
    values: Values

    def expanded(self, fixed: Mapping[str, str]) -> Iterator["RowsSpec"]:
        """Yield the rows for each combination of `each`."""
        for names in combinations(self.each, fixed):
            by = [filled_in(level, names) for level in self.by]
            yield RowsSpec.model_construct(by=by, values=_filled(self.values, names))


class CodeSpec(Spec):
    """How a code is written: its text or name, or the characters from … to (from 1), and then a text."""

    texts: dict[str, Text] = Field(default_factory=dict)
    name: bool = False
    characters: Annotated[list[Whole], Field(min_length=2, max_length=2)] | None = None
    then: str = ""

    def written(self, code: str, names: Mapping[str, str]) -> str:
        """Return a code as the layout has it; an empty name where `names` have none."""
        text = self.texts.get(code, names.get(code, "") if self.name else code)
        first, last = map(int, self.characters or (1, len(text)))
        return text[first - 1 : last] + self.then


class ColumnSpec(Spec):
    """A column of a layout: codes by level, or a value, the flag of its relative error, or its footnotes.

    `of`: of a level that the rows do not have, the code that is shown, or several that are added up. An `optional`
    column stays empty where the tables have no such codes.
    """

    name: Text
    meaning: Text
    codes: dict[str, CodeSpec] | None = None
    otherwise: str = ""
    value: Text | None = None
    of: dict[str, Texts] = Field(default_factory=dict)
    flag: Text | None = None
    notes: Text | None = None
    optional: bool = False

    @property
    def measure(self) -> str | None:
        """The figure of which it shows the value, the flag or the footnotes."""
        return self.value or self.flag or self.notes


def _flat(columns: Any) -> Any:
    """Return a list without the lists in it, such as YAML's anchors put there."""
    if not isinstance(columns, list):
        return columns
    return [each for item in columns for each in (item if isinstance(item, list) else [item])]


class LayoutSpec(Spec):
    """A file of rows of several tables, written as its users know it.

    `sums`: columns that are the sums of others, which is checked where tables are reconciled. `ranges`: whether a file
    beside it has the interval of every value. An `optional` one is left out where no folder has its tables.
    """

    file: Text
    about: Text
    optional: bool = False
    rows: Annotated[list[RowsSpec], Field(min_length=1)]
    order: list[Text] = Field(default_factory=list)
    columns: Annotated[list[ColumnSpec], Field(min_length=1), BeforeValidator(_flat)]
    sums: dict[str, Annotated[list[Text], Field(min_length=1)]] = Field(default_factory=dict)
    withhold: WithholdSpec | None = None
    leave_out_empty: bool = False
    ranges: bool = False

    @property
    def ranges_file(self) -> str:
        """The name of the file with ranges."""
        path = Path(self.file)
        return f"{path.stem}_ranges{path.suffix}"


class ProductSpec(Spec):
    """A product: `reconciled` where it shows reconciled figures alone.

    `csv`: whether tables come as CSV beside Parquet; `zip`: whether each text file lies in an archive of its own.
    """

    product: Name
    title: Text
    year: Year | None = None
    reconciled: bool = False
    csv: bool = True
    zip: bool = False
    levels: Annotated[dict[LevelName, LevelSpec], Field(min_length=1)]
    measures: Annotated[dict[LevelName, MeasureSpec], Field(min_length=1)]
    lists: dict[LevelName, NumbersSpec] = Field(default_factory=dict)
    derived: dict[LevelName, DerivedSpec] = Field(default_factory=dict)
    concordances: dict[LevelName, ConcordanceSpec] = Field(default_factory=dict)
    footnotes: Annotated[list[NoteSpec], Field(max_length=60)] = Field(default_factory=list)
    basic: BasicSpec = Field(default_factory=BasicSpec)
    flags: list[FlagSpec] = Field(default_factory=list)
    tables: list[TableSpec] = Field(default_factory=list)
    layouts: list[LayoutSpec] = Field(default_factory=list)

    def read_by(self, columns: Iterable[ColumnSpec]) -> dict[str, None]:
        """Return the measures that columns show, or what they show is made of, in order."""
        made_of: list[list[str]] = []
        for name in (each.measure for each in columns if each.measure is not None):
            of = self.derived.get(name)
            made_of.append([name] if of is None else [*of.ratio, *of.share, *of.change, *of.per])
        return dict.fromkeys(name for names in made_of for name in names if name not in self.lists)

    @property
    def public_files(self) -> dict[KeyPath, NumbersSpec | ConcordanceSpec | NoteSpec]:
        """What is read of public files, by the key that names them."""
        return {
            **{("lists", name, "file"): each for name, each in self.lists.items()},
            **{("concordances", level, "file"): each for level, each in self.concordances.items()},
            **{("footnotes", i, "codes"): each for i, each in enumerate(self.footnotes)},
        }

    @property
    def figures(self) -> dict[str, MeasureSpec | DerivedSpec | NumbersSpec]:
        """Measures, what is made of them, and public numbers, by name."""
        return {**self.measures, **self.derived, **self.lists}


def filled_in(text: str, names: Mapping[str, str]) -> str:
    """Return a text with each {name} replaced."""
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def combinations(each: Mapping[str, list[str]], fixed: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the names and values of each combination, those of `fixed` among them."""
    for values in product(*each.values()):
        yield {**fixed, **dict(zip(each, values, strict=True))}


def _filled(values: Mapping[str, str | list[str]], names: Mapping[str, str]) -> dict[str, str | list[str]]:
    return {
        measure: filled_in(of, names) if isinstance(of, str) else [filled_in(table, names) for table in of]
        for measure, of in values.items()
    }


def file_of(named: str | Path) -> Path:
    """Return the file of a product; a name is one of conf/products. Raises PlanError where there is none."""
    file = Path(named)
    if file.suffix in (".yaml", ".yml"):
        return file
    path = HOME / f"{named}.yaml"
    if path.parent != HOME or not path.exists():
        known = ", ".join(sorted(each.stem for each in HOME.glob("*.yaml")))
        raise PlanError(
            f"{arg('product', named)}: unknown product: give a file that ends with .yaml, or one of {known}"
        )
    return path


def load_product(named: str | Path, year: int | None = None) -> ProductSpec:
    """Return the product that a file, or a name of conf/products, describes: its tables and rows one by one.

    Files of names and public lists are relative to the product's. Raises PlanError with one line for each mistake.
    """
    if year is not None and not 1900 <= year <= 2999:
        raise PlanError(f"{arg('year', year)}: a year such as 2023 is needed")
    path = file_of(named)
    text = read_text(path, PRODUCT)
    _fill_values(text.data)
    try:
        spec = ProductSpec.model_validate(text.data)
    except ValidationError as error:
        mistakes = list(shape_mistakes(error.errors(include_url=False), ProductSpec))
    else:
        spec.year = spec.year if year is None else year
        mistakes = list(_mistakes(spec))
    lines = [] if mistakes else list(_reading(spec, path.parent, mistakes))
    if mistakes or lines:
        raise PlanError(*lines_of(mistakes, text, path, lines))
    if spec.year is None and any("{y" in name for name in _names(text.data)):
        raise PlanError(f"{path}: year: the names of files hold it: write year: in the file, or give {arg('year')}")
    return _expanded(spec, path.parent)


def _reading(spec: ProductSpec, folder: Path, mistakes: list[Mistake]) -> Iterator[tuple[KeyPath, str]]:
    """Read all public lists; yield lines on what is wrong in them, and add files that cannot be read to `mistakes`."""
    for path, each in spec.public_files.items():
        try:
            each.read(folder)
        except UnreadableFile as error:
            mistakes.append(Mistake(path, str(error)))
        except PlanError as error:
            yield from ((path, line) for line in error.lines)


def _fill_values(data: dict[str, Any]) -> None:
    """Put a table for each measure where `values` is a text such as jobs_{measure}."""
    of = {key: each if isinstance(each := data.get(key), list) else [] for key in ("tables", "layouts")}
    rows = (each.get("rows") or [] for each in of["layouts"] if isinstance(each, dict))
    for holder in (*of["tables"], *(each for some in rows if isinstance(some, list) for each in some)):
        if isinstance(holder, dict) and isinstance(text := holder.get("values"), str):
            measures = data["measures"] if isinstance(data.get("measures"), dict) else ()
            holder["values"] = {measure: text.replace("{measure}", measure) for measure in measures}


def _names(data: Mapping[str, Any]) -> list[str]:
    return [*(table["name"] for table in data.get("tables", [])), *(each["file"] for each in data.get("layouts", []))]


def _expanded(spec: ProductSpec, folder: Path) -> ProductSpec:
    fixed = {} if spec.year is None else {"year": str(spec.year), "yy": f"{spec.year % 100:02d}"}
    for level in spec.levels.values():
        level.names = [str(folder / name) for name in level.names]
    spec.tables = [each for table in spec.tables for each in table.expanded(fixed)]
    for layout in spec.layouts:
        layout.file = filled_in(layout.file, fixed)
        layout.rows = [each for rows in layout.rows for each in rows.expanded(fixed)]
    layouts = [name for each in spec.layouts for name in (each.file, *([each.ranges_file] if each.ranges else []))]
    for files in ([table.name for table in spec.tables], [Path(file).stem for file in layouts]):
        for name in files:
            if files.count(safe_name("file", name)) > 1:
                raise PlanError(f"product {spec.product}: two of its files are called {name}")
    return spec


def _mistakes(spec: ProductSpec) -> Iterator[Mistake]:
    if not spec.tables and not spec.layouts:
        yield Mistake((), "tables or layouts are needed", absent=(("tables",), ("layouts",)))
    known = f"must be one of {', '.join(spec.measures)}"
    yield from _name_mistakes(spec)
    for i, table in enumerate(spec.tables):
        yield from (Mistake(("tables", i, "values", m), known) for m in table.values if m not in spec.measures)
    limits = [flag.under for flag in spec.flags]
    for i, limit in enumerate(limits):
        if (limit is None) != (i == len(limits) - 1):
            yield Mistake(("flags", i, "under"), "all flags but the last, and only they, have a limit")
        elif spec.flags[i].flag == WITHHELD:
            yield Mistake(("flags", i, "flag"), f"must not be {WITHHELD}, which stands for values that are withheld")
        elif limit is not None and i and not (limits[i - 1] or limit) < limit:
            yield Mistake(("flags", i, "under"), "must be above the one before it")
    for i, layout in enumerate(spec.layouts):
        yield from _layout_mistakes(layout, ("layouts", i), spec)
        values = {column.name for column in layout.columns if column.value in spec.measures}
        for name, others in layout.sums.items():
            if lacking := {name, *others} - values:
                yield Mistake(("layouts", i, "sums", name), f"{min(lacking)} is no column of values")


def _name_mistakes(spec: ProductSpec) -> Iterator[Mistake]:
    for measure in spec.measures:
        if measure in spec.levels or measure.endswith(COLUMNS):
            rule = f"must be no level's name, and end with none of {', '.join(COLUMNS)}: columns have these names"
            yield Mistake(("measures", measure), rule)
    for kind, names in (("derived", spec.derived), ("lists", spec.lists)):
        for name in names:
            if name in spec.measures or name in spec.levels or (kind == "lists" and name in spec.derived):
                yield Mistake((kind, name), "a measure or a level has this name")
    for name, figure in spec.derived.items():
        yield from figure.mistakes(("derived", name), spec.measures, spec.lists)
    of_levels = {("lists", name, "codes"): each.codes for name, each in spec.lists.items()}
    for path, levels in ({("concordances",): spec.concordances} | of_levels).items():
        yield from (Mistake((*path, level), "is no level") for level in levels if level not in spec.levels)
    for i, note in enumerate(spec.footnotes):
        yield from note.mistakes(("footnotes", i), spec.levels, spec.figures)
        if note.note in {each.note for each in spec.footnotes[:i]}:
            yield Mistake(("footnotes", i, "note"), "another footnote has this name")


def _layout_mistakes(layout: LayoutSpec, path: KeyPath, spec: ProductSpec) -> Iterator[Mistake]:
    if not layout.file.endswith((".txt", ".csv")) or "/" in layout.file or layout.file.startswith("."):
        yield Mistake((*path, "file"), "must be a name that ends with .txt or .csv")
    names: set[str] = set()
    for j, column in enumerate(layout.columns):
        if column.name in names:
            yield Mistake((*path, "columns", j, "name"), "another column has this name")
        names.add(column.name)
        yield from _column_mistakes(column, layout, (*path, "columns", j), spec)
    if all(column.codes is not None or column.value in spec.lists for column in layout.columns):
        yield Mistake((*path, "columns"), "must show a measure, whose table tells the rows")
    for j, name in enumerate(layout.order):
        if name not in {column.name for column in layout.columns if column.codes is not None}:
            yield Mistake((*path, "order", j), "must be a column of codes")


def _column_mistakes(column: ColumnSpec, layout: LayoutSpec, key: KeyPath, spec: ProductSpec) -> Iterator[Mistake]:
    if sum(each is not None for each in (column.codes, column.value, column.flag, column.notes)) != 1:
        yield Mistake(key, "one of codes, value, flag and notes is needed, and only one")
        return
    for kind, shown, there in (("flag", column.flag, spec.flags), ("notes", column.notes, spec.footnotes)):
        if shown is not None and not there:
            yield Mistake((*key, kind), f"the product has no {'flags' if kind == 'flag' else 'footnotes'}")
        elif shown in spec.lists:
            yield Mistake((*key, kind), f"{shown} is a public list, whose numbers have no error")
    if column.measure is not None and column.measure not in spec.figures:
        yield Mistake(key, f"must show one of {', '.join(spec.figures)}")
        return
    if column.of and column.measure not in (None, *spec.measures):
        yield Mistake((*key, "of"), f"goes with a measure: {column.measure} is of all codes of its row")
    for k, rows in enumerate(layout.rows):
        for measure in spec.read_by([column]):
            if measure not in rows.values:
                yield Mistake((*key[:-2], "rows", k, "values"), f"lacks {measure}, which column {column.name} shows")
        yield from (
            Mistake((*key, "of", level), "must not be a level of the rows") for level in column.of if level in rows.by
        )
