"""What is wrong with a level or a code that a plan names: the words of the rule, or None."""

from collections.abc import Callable

from pipeline.domain import Domain
from pipeline.errors import PlanError
from pipeline.nearest import nearest
from udfs.codes import LEVELS

ALL_LEVELS = tuple(level for levels in LEVELS.values() for level in levels)


def level_rule(level: str, domain: Domain | None) -> str | None:
    """Return the rule that `level` breaks: it must be known, and the domain (None: not read) as fine."""
    if level not in ALL_LEVELS:
        return f"unknown level; nearest known level: {nearest(level, ALL_LEVELS)}"
    return None if domain is None else _objection(domain.dimension, level)


def code_rule(level: str, code: str, domain: Domain | None) -> str | None:
    """Return the rule that `code` breaks: the domain must have it at `level`, a level without a broken rule."""
    return None if domain is None else _objection(domain.require_code, level, code)


def _objection(require: Callable[..., object], *names: str) -> str | None:
    try:
        require(*names)
    except PlanError as error:
        return str(error)
    return None
