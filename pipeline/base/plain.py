"""One rule for text from outside: it holds no character that acts on whoever reads it, in place of being read.

Such characters are C0 and C1 control characters, separators of lines and paragraphs, marks and overrides of the
direction of writing, and surrogates. Edges refuse them (`require_plain`, `plain_json`); what is printed shows them
escaped (`escaped`).
"""

import json
import re
from typing import Any, Final

from pipeline.base.errors import PlanError

_ACTING: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_TEXTS: Final = re.compile(f"[{_ACTING}]")
_IN_A_LINE: Final = re.compile(f"[\t\n{_ACTING}]")
# Where a cell of a CSV file begins so, in quotes or not, spreadsheets take it for a formula; a sign alone is none.
_FORMULA: Final = re.compile(r"\s*[=+\-@＝＋－＠](?=.*\w)")


def escaped(text: str) -> str:
    r"""Return text for a terminal or JSON: what acts stands as \uXXXX; ends of lines and tabs stay."""
    return _IN_TEXTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_plain(text: str, *, lines: bool = False) -> bool:
    """Whether nothing in the text acts; `lines`: ends of lines and tabs may stand in it."""
    return (_IN_TEXTS if lines else _IN_A_LINE).search(text) is None


def rule_of_name(name: str) -> str | None:
    """Return the rule that a name of a code breaks, which is published in CSV files; None where it breaks none."""
    if not is_plain(name):
        return "a name must be one line without control characters and marks of direction"
    if _FORMULA.match(name):
        return "a name must not begin with =, +, - or @, which spreadsheets take for a formula; begin with a word"
    return None


def checked_reason(text: str) -> str:
    """Return a reason for the ledger without the spaces around it; PlanError unless of 1 to 1,000 plain characters."""
    if not text.strip() or len(text) > 1000 or not is_plain(text):
        raise PlanError("a reason of 1 to 1,000 characters is needed, on one line, none of them a control character")
    return text.strip()


def plain_json(data: str | bytes) -> Any:
    """Return the value of a JSON text whose every text is plain; raises ValueError otherwise."""
    value = json.loads(data)
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str) and not is_plain(one, lines=True):
            raise ValueError("a text of the JSON holds control characters")
        if isinstance(one, dict):
            rest += [*one, *one.values()]
        elif isinstance(one, list):
            rest += one
    return value
