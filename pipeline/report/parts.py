"""Parts of a page: tables and lists, with every text escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def rows(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table as HTML; the columns `numbers` are set to the right."""
    right = set(numbers)

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in right else ''}>{escape(str(cell))}</{tag}>" for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{line('th', header)}</tr></thead><tbody>{body}</tbody></table></div>"


def items(texts: Iterable[str]) -> str:
    """Return a list as HTML."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in texts) + "</ul>"
