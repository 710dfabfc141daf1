"""Changes in the text of a plan that leave everything else as its author wrote it: comments, order and layout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.plan.messages import KeyPath

HASH = "# "


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
    key, value = _found(root, (dropped,))
    if getattr(root, "flow_style", False) or key.start_mark.column:
        return None
    start, end = key.start_mark.index, _line_end(source, max(_ends(value)))
    block = source[start:end].split("\n")
    changes.append((start, end, "\n".join([HASH + why, *(f"{HASH}{line}".rstrip() for line in block)])))
    for start, end, text in sorted(changes, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _changes(source: str, root: yaml.Node, entry: Entry) -> Iterator[tuple[int, int, str]]:
    key, value = _found(root, entry.path)
    yield key.start_mark.index, value.end_mark.index, entry.text
    line = source.rfind("\n", 0, key.start_mark.index) + 1
    indent = len(source[line:]) - len(source[line:].lstrip(" "))
    yield line, line, f"{' ' * indent}{HASH}{entry.comment}\n"


def _found(node: Any, path: KeyPath) -> tuple[yaml.Node, yaml.Node]:
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
