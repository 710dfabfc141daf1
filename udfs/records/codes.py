"""NAICS and county codes: which are well-formed, and what each rolls up to."""

from collections.abc import Mapping
from types import MappingProxyType

NAICS_LEVELS = ("naics2", "naics3", "naics4", "naics5", "naics6")
COUNTY_LEVELS = ("nation", "state", "county")
LEVELS: Mapping[str, tuple[str, ...]] = MappingProxyType({"naics": NAICS_LEVELS, "county": COUNTY_LEVELS})

MOST_KEYS = 16
MOST_CELLS = 1 << 56  # of a query: numbers of cells are below
NOWHERE = -(1 << 57)  # of MOST_KEYS keys some can be nowhere: the sum with all others' numbers stays below zero

NATION = "US"
LONGEST_CODE = 100
OTHER = "other"  # a public code for all codes that a domain does not list; no record may have it
# Three sectors span several two-digit codes; the public code of such a sector is its range.
SECTOR_RANGES: Mapping[str, str] = MappingProxyType(
    {"31": "31-33", "32": "31-33", "33": "31-33", "44": "44-45", "45": "44-45", "48": "48-49", "49": "48-49"}
)
_DIGITS = {"naics2": 2, "naics3": 3, "naics4": 4, "naics5": 5, "naics6": 6, "state": 2, "county": 5}


def is_code(code: str, level: str) -> bool:
    """Return whether `code` is well-formed at `level`: a record's NAICS code is 6 digits, the first two not 00.

    Raises ValueError on an unknown level.
    """
    if level == "nation":
        return code == NATION
    if level == "naics2" and (code in SECTOR_RANGES or code in SECTOR_RANGES.values()):
        return code not in SECTOR_RANGES
    return _are_digits(code, _digits(level)) and not (level in NAICS_LEVELS and code.startswith("00"))


def is_text_code(code: str) -> bool:
    """Return whether `code` is well-formed as a code of a key other than naics and county, whose lists say no more."""
    return 0 < len(code) <= LONGEST_CODE and code == code.strip() and code.isprintable() and code != OTHER


def roll_up(code: str, level: str) -> str:
    """Return the code at `level` that contains `code`, a well-formed code at that level or a finer one.

    So roll_up("311111", "naics2") is "31-33"; OTHER stays itself up to the nation. Call it once per distinct code, not
    once per record. Raises ValueError on an unknown level and on a code too short for the level.
    """
    if level == "nation":
        return NATION
    if code == OTHER or (level == "naics2" and code in SECTOR_RANGES.values()):
        return code
    prefix = code[: _digits(level)]
    if not _are_digits(prefix, _digits(level)):
        raise ValueError(f"a code of at least {_digits(level)} digits is needed for {level}")
    return SECTOR_RANGES.get(prefix, prefix) if level == "naics2" else prefix


def _are_digits(text: str, count: int) -> bool:
    return len(text) == count and text.isascii() and text.isdigit()


def _digits(level: str) -> int:
    if level not in _DIGITS:
        raise ValueError(f"unknown level {level!r}")
    return _DIGITS[level]
