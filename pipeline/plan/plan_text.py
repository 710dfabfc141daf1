"""The text of a plan as plain data, with the line of each of its parts.

Scalars are read as YAML 1.2 reads them (as JSON Schema editors do): no octal numbers, no dates, no yes and no.
"""

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.plain import is_plain
from pipeline.storage.paths import LARGEST_TEXT, TooLarge, read_input

PARQUET = b"PAR1"
PLAN, STUDY, BUDGET, SITE = "a plan", "a study", "a file of limits", "a site's settings"
PRODUCT, ECONOMY = "a product", "an economy"
# Kinds of files that are taken for each other: the keys that most of them have, and what takes them.
KINDS: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    PLAN: (
        frozenset({"release", "supersedes", "dataset", "domain", "interval", "queries", "budget"}),
        "prdp explain or prdp release",
    ),
    STUDY: (frozenset({"study", "title", "data", "query", "equal", "sizes", "panels", "today"}), "prdp study run"),
    PRODUCT: (
        frozenset({"product", "title", "year", "levels", "measures", "basic", "flags", "tables", "layouts"}),
        "prdp product --product",
    ),
    ECONOMY: (
        frozenset({"economy", "about", "plan", "product", "family", "lists", "columns"}),
        "prdp generate --economy",
    ),
    BUDGET: (frozenset({"dataset", "family", "unit", "limits"}), "prdp ledger init"),
    SITE: (frozenset({"ledger", "require_registered", "signing_key"}), "PRDP_SITE"),
    "the manifest of a release": (
        frozenset({"release", "attempt", "plan_digest", "engine", "date", "tables", "files", "ledger_head"}),
        "prdp verify with its folder",
    ),
}
KeyPath = tuple[str | int, ...]
_TAG = "tag:yaml.org,2002:"
_SCALARS = {  # kind → pattern, first characters; an integer before a float
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
}
_PLAIN = {_TAG + kind for kind in (*_SCALARS, "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    """Builds nothing but JSON's types; refuses tags, repeated keys and keys that are no text.

    It is PyYAML's own loader, not libyaml's, which ends the process with a segmentation fault on deep nesting.
    """

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: build for tag, build in yaml.SafeLoader.yaml_constructors.items() if tag in _PLAIN
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TAG + "str":
                braces = isinstance(key, yaml.MappingNode)
                raise _refused(
                    "put text with {{ }} in quotes" if braces else "a key must be text; put it in quotes", key
                )
            if key.value in seen:
                raise _refused(f'key "{key.value}" stands twice', key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        if not is_plain(str(text), lines=True):
            raise _refused("text must not hold control characters or marks of direction", node)
        return text

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value)

    def refuse_tag(self, node: yaml.Node) -> None:
        raise _refused("write plain values, without tags", node)


def _refused(rule: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=rule, problem_mark=node.start_mark)


_Loader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_TAG + "int", _Loader.construct_yaml_int)
_Loader.add_constructor(None, _Loader.refuse_tag)


class _Dumper(yaml.SafeDumper):
    """Quotes all text that the loader above, or another YAML reader, would take for anything but text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, (_pattern, _first) in _SCALARS.items():
    _Dumper.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_pattern})$"), _first)


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TAG + "str", text, style="|" if "\n" in text else None)
)


HASH = "# "
WIDTH = 110  # of lines


def written(data: dict[str, Any], notes: Mapping[str, Sequence[Sequence[str]]] | None = None) -> str:
    """Return the text of a plan that reads as `data`, plain data, its keys in their order.

    `notes`: by the name of a list, lines of comment before each of its items, which then have a line each.
    """
    if notes is None:
        return _dumped(data, None, WIDTH)
    return "".join(
        f"{key}:\n" + "".join(map(_noted, value, notes[key]))
        if key in notes
        else _dumped({key: value}, None if isinstance(value, dict | list) else False, WIDTH)
        for key, value in data.items()
    )


def _noted(item: Any, notes: Sequence[str]) -> str:
    return "".join(f"  {HASH}{note}\n" for note in notes) + f"  - {_dumped(item, True, LARGEST_TEXT)}"


def _dumped(data: Any, flow: bool | None, width: int) -> str:
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width
    )
    return text


@dataclass(frozen=True)
class PlanText:
    """A plan as plain data (mappings with text keys, lists, text, numbers, truth values, None).

    `source`: it as it was written. `in_file`: it was read from a file, so that its lines say something to people.
    `origins`: of a list with entries of several measures, the number of the one written that each item of `data` is of;
    `together`: by the name of each such item, that of the entry.
    """

    data: dict[str, Any]
    root: yaml.Node
    source: str
    in_file: bool = True
    origins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    together: Mapping[str, str] = field(default_factory=dict)

    def line(self, path: Sequence[str | int]) -> int | None:
        """Return the line, from 1, of the deepest part of `path` that stands in the file; None where no part does."""
        return self.position(path)[0] + 1 if self.in_file and path and path[0] in self.data else None

    def position(self, path: Sequence[str | int]) -> tuple[int, int]:
        """Return (line, column), from 0, of the deepest part of `path` that stands in the text."""
        node, mark = self.root, self.root.start_mark
        if len(path) > 1 and (numbers := self.origins.get(str(path[0]))) and isinstance(path[1], int):
            path = (path[0], numbers[path[1]], *path[2:])
        for step in path:
            if isinstance(node, yaml.MappingNode):
                part = next(((key.start_mark, value) for key, value in node.value if key.value == step), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                part = node.value[step].start_mark, node.value[step]
            else:
                part = None
            if part is None:
                break
            mark, node = part
        return mark.line, mark.column


def read_text(path: Path, what: str = PLAN) -> PlanText:
    """Return the data of the YAML file `path`, which is to be `what`, a name of KINDS.

    Raises PlanError, which names file and line, on a file that cannot be read, is too large, no UTF-8 or no YAML, on
    anything but one mapping, and on a file of another kind.
    """
    try:
        data = read_input(path, LARGEST_TEXT)
        if data.startswith(PARQUET):
            raise PlanError(f"{path}: this is a Parquet file, not {what}")
        text = parsed(data.decode("utf-8-sig"), path)
    except FileNotFoundError:
        raise PlanError(f"{path}: no such file") from None
    except TooLarge as error:
        raise PlanError(f"{path}: {error.strerror}; list many cells in a file that the key domain names") from None
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PlanError(f"{path}: line {line}: not UTF-8; save the file as UTF-8") from None
    _require_kind(text, path, what)
    return measure_by_measure(text, path) if what == PLAN else text


def _require_kind(text: PlanText, path: Path, what: str) -> None:
    """Return unless most keys are those of another kind of file: that is one mistake, not one a key."""
    known = {kind: len(keys & text.data.keys()) for kind, (keys, _) in KINDS.items()}
    likely = max(known, key=lambda kind: (known[kind], kind == what))
    if likely != what and known[likely] > 1:
        raise PlanError(f"{path}: this is {likely}, not {what}; use {KINDS[likely][1]}")


def text_of(data: Mapping[str, Any], path: Path) -> PlanText:
    """Return plain data as the text of a plan that is named `path` in messages; raises PlanError on other values."""
    try:
        return measure_by_measure(replace(parsed(written(unshared(data)), path), in_file=False), path)
    except yaml.representer.RepresenterError:
        raise PlanError(f"{path}: a plan holds mappings, lists, text, numbers and truth values alone") from None


def public_file(folder: Path, name: str) -> Path:
    """Return the file that a plan in `folder` names; ".." is taken off by name, so that what it leaves is not asked."""
    return Path(os.path.normpath(folder / name))


def unshared(value: Any) -> Any:
    """Return a copy of plain data of which no part stands in two places, as what YAML's aliases name does."""
    if isinstance(value, Mapping):
        return {key: unshared(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [unshared(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def parsed(text: str, path: Path) -> PlanText:
    """Return the data of a text that is named `path` in messages; raises PlanError where it is no mapping in YAML."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        data = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise PlanError(f"{path}: {where}{', '.join(filter(None, (error.context, error.problem)))}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PlanError(f"{path}: line {line}: a character that YAML does not allow") from None
    except (ValueError, KeyError):
        raise PlanError(f"{path}: a value cannot be read; write plain text and numbers, without tags") from None
    except RecursionError:
        raise PlanError(f"{path}: nested too deeply") from None
    if root is None or not isinstance(data, dict):
        raise PlanError(f"{path}: must be a mapping of keys to values, such as release: my-release")
    return PlanText(data, root, text)


# Tables of several measures: `sum: [m1, m2]` is one table of each, with the same cells. They are told apart before
# anything else is read of a plan, so that losses, noise and digests are those of the tables written one by one.

SUM, NAME, TITLE, AT = "sum", "name", "title", "at"
DEEPEST = 6  # keys within a table: aliases of YAML can make data that are all but endless
SHARED = (SUM, NAME, "by", "where")  # keys of such a table that no measure has for itself


def measure_by_measure(text: PlanText, path: Path) -> PlanText:
    """Return a plan's text with a table NAME_MEASURE for each measure of a table whose `sum` is a list.

    Any other value of such a table may be a mapping by measure, such as `sigma: {employment: 50, payroll: 2000}`.
    Raises PlanError, which names file and line, where the list or such a mapping is wrong.
    """
    data, origins, together = dict(text.data), dict[str, list[int]](), dict[str, str]()
    for key in ("queries", "derived"):
        tables = text.data.get(key)
        if not isinstance(tables, list) or not any(isinstance(_sum_of(table), list) for table in tables):
            continue
        expanded: list[Any] = []
        origins[key] = []
        for number, table in enumerate(tables):
            measures = _sum_of(table)
            split = [table]
            if isinstance(measures, list):
                names = [each.get(NAME) for each in tables if isinstance(each, dict)]
                counted = {_counted(text.data, measure) for measure in measures} - {""}
                for wrong, rule in _list_mistakes(table, measures, names, counted):
                    where = f"line {line}: " if (line := text.line((key, number, *wrong))) else ""
                    raise PlanError(f"{path}: {where}{key}[{number}].{in_a_line('.'.join(wrong))}: {rule}")
                split = [_of_measure(table, measures, measure) for measure in measures]
                together |= {each[NAME]: table[NAME] for each in split}
            expanded += split
            origins[key] += [number] * len(split)
        data[key] = expanded
    return replace(text, data=data, origins=origins, together=together)


def _sum_of(table: Any) -> Any:
    """Return a table's measures where it is meant to have several; what is no list of text the plan's shape refuses."""
    measures = table.get(SUM) if isinstance(table, dict) else None
    return measures if isinstance(measures, list) and all(isinstance(each, str) for each in measures) else None


def _list_mistakes(table: Any, measures: list[Any], names: list[Any], counted: set[str]) -> Iterator[tuple[Any, str]]:
    if len(measures) < 2 or len({*measures}) < len(measures):
        yield (SUM,), "must be one measure, or a list of two or more different ones"
    elif not isinstance(table.get(NAME), str):
        yield (NAME,), "must be text: its tables are called NAME_MEASURE"
    elif names.count(table[NAME]) > 1:
        yield (NAME,), "another table has this name"
    elif isinstance(table.get("unit"), str) and len(counted) > 1:
        yield ("unit",), "is one for measures of several types or steps: state that of each, by its name, or one step"
    else:
        yield from _partial(table, {*measures}, ())


def _counted(data: Any, measure: str) -> str:
    """Return a measure's type and step; "" where the plan is not of the right shape."""
    for key in ("dataset", "measures", measure):
        data = data.get(key) if isinstance(data, dict) else None
    return f"{data.get('type')} {data.get('step', 1)}" if isinstance(data, dict) else ""


def _partial(value: Any, measures: set[str], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield mappings that name some of the measures, or others beside them."""
    if not isinstance(value, dict) or len(path) > DEEPEST:
        return
    if path[-1:] not in ((AT,), ("parts",)) and value.keys() & measures and value.keys() != measures:
        yield path, f"must name each measure of the table, and nothing else: {', '.join(sorted(measures))}"
        return
    for key, each in value.items():
        if path or key not in SHARED:
            yield from _partial(each, measures, (*path, key))


def _of_measure(table: Mapping[str, Any], measures: list[str], measure: str) -> dict[str, Any]:
    own = {key: each if key in SHARED else _own(each, {*measures}, measure, (key,)) for key, each in table.items()}
    if isinstance(table.get(TITLE), str):  # one title for all
        own[TITLE] = f"{table[TITLE]}: {measure}"
    return own | {NAME: f"{table[NAME]}_{measure}", SUM: measure}


def _own(value: Any, measures: set[str], measure: str, path: tuple[str, ...]) -> Any:
    """Return what of a value is meant for one of the measures; of a reference record, its value of this measure."""
    if not isinstance(value, dict) or len(path) > DEEPEST:
        return value
    if path[-1] == AT:
        return {name: each for name, each in value.items() if name == measure or name not in measures}
    if value.keys() == measures:
        return value[measure]
    return {name: _own(each, measures, measure, (*path, name)) for name, each in value.items()}


# Changes in the text of a plan that leave everything else as its author wrote it: comments, order and layout.


@dataclass(frozen=True)
class Entry:
    """A key with its value that takes the place of the one at `path`, and a comment for the line before."""

    path: KeyPath
    text: str
    comment: str


def edited(source: str, root: yaml.Node, entries: Sequence[Entry], dropped: str, why: str) -> str | None:
    """Return `source` with the entries, and with the lines of its key `dropped` as comments after the line `why`.

    None where that key does not stand in lines of its own. `root` is the node of the same text. The caller reads the
    result and compares: a comment may end up inside a text of several lines.
    """
    changes = [change for entry in entries for change in _changes(source, root, entry)]
    key, value = _entry_at(root, (dropped,))
    if getattr(root, "flow_style", False) or key.start_mark.column:
        return None
    start, end = key.start_mark.index, _line_end(source, max(_ends(value)))
    block = source[start:end].split("\n")
    changes.append((start, end, "\n".join([HASH + why, *(f"{HASH}{line}".rstrip() for line in block)])))
    for start, end, text in sorted(changes, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _changes(source: str, root: yaml.Node, entry: Entry) -> Iterator[tuple[int, int, str]]:
    key, value = _entry_at(root, entry.path)
    yield key.start_mark.index, value.end_mark.index, entry.text
    line = source.rfind("\n", 0, key.start_mark.index) + 1
    indent = len(source[line:]) - len(source[line:].lstrip(" "))
    yield line, line, f"{' ' * indent}{HASH}{entry.comment}\n"


def _entry_at(node: Any, path: KeyPath) -> tuple[yaml.Node, yaml.Node]:
    """Return the nodes of the key at the end of a path that is there, and of its value."""
    key = node
    for step in path:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[step]
        else:
            key, node = next(pair for pair in node.value if pair[0].value == step)
    return key, node


def _ends(node: Any) -> Iterator[int]:
    """Yield where the values in a node end; a block ends only where the next one begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        yield node.end_mark.index
    else:
        for each in node.value:
            yield from _ends(each[1] if isinstance(each, tuple) else each)


def _line_end(source: str, index: int) -> int:
    end = source.find("\n", index)
    return len(source) if end < 0 else end
