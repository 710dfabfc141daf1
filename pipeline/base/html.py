"""Pages from the templates of this room: every text escaped, one stylesheet, nothing loaded from elsewhere.

A page's module computes what is shown, as texts, tables and pictures; its template lays them out.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from udfs.numbers.exact import bound_text

if TYPE_CHECKING:
    from jinja2 import Environment

# Quantiles of losses: those that documents hold, and those of them that pages show.
QUANTILES = ("0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99", "0.999", "0.9999")
SHOWN = ("0.1", "0.5", "0.9", "0.99", "0.9999")


@dataclass(frozen=True)
class Table:
    """A table of texts; the columns whose indices are in `numbers` are set to the right, those in `words` are wide."""

    header: Sequence[str]
    rows: Iterable[Sequence[str]]
    numbers: Collection[int] = ()
    words: Collection[int] = ()


def rendered(template: str, **values: Any) -> str:
    """Return the page that a template of this room makes of the values; a value that is missing is an error."""
    return _environment().get_template(template).render(**values) + "\n"


def source_of(template: str) -> str:
    """Return the text of a template of this room as it stands, of a stylesheet or a script."""
    return files("pipeline.base").joinpath("templates", template).read_text(encoding="utf-8")


def number(value: float | None) -> str:
    """Return a figure in four digits, or in full from 10,000 on; a dash stands for None."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def bound(value: float | None) -> str:
    """Return an upper bound in four digits, rounded up; a dash stands for None."""
    return "–" if value is None else bound_text(value, 4)


def percent(share: float | None) -> str:
    """Return a share in per cent; a dash stands for None."""
    return "–" if share is None else f"{share * 100:.1f} %"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 — for those who make a page alone

    layout: Any = {"trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader("pipeline.base"), autoescape=True, undefined=StrictUndefined, **layout)
