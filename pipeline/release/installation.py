"""What a site lays down for everyone who runs prdp on its machines: one ledger, and registered datasets only.

It keeps honest people from mistakes: whoever brings another prdp is held back by the rights on microdata and database
alone.
"""

import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.accounting.accountant import SHARE
from pipeline.base.errors import PlanError, arg, hint
from pipeline.plan.plan_text import SITE, read_text
from pipeline.plan.structure import MOST_CELLS
from udfs.numbers.exact import exact

if TYPE_CHECKING:
    from pipeline.publication.signing import SigningKey

FILE = Path("/etc/prdp/site.yaml")  # where it is there, no variable of a user's takes its place
VARIABLE, OPERATOR, SIGNING_KEY = "PRDP_SITE", "PRDP_OPERATOR", "PRDP_SIGNING_KEY"
TEXTS = ("ledger", "signing_key", "metrics", "traces", "lineage")
KEYS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # what each must be, in words and as a check
    **dict.fromkeys(TEXTS, ("text", lambda value: isinstance(value, str))),
    "require_registered": ("true or false", lambda value: isinstance(value, bool)),
    "max_cells": ("a whole number above 0", lambda value: type(value) is int and value > 0),
    "max_left_out": ("a number at least 0 and below 1", lambda value: type(value) in (int, float) and 0 <= value < 1),
}


@dataclass(frozen=True)
class Site:
    """What a site fixes; the rest is open."""

    ledger: str | None = None  # the one to be used
    require_registered: bool = False  # plans need a registered dataset
    max_left_out: Fraction = SHARE  # of records, where the plan states no share
    max_cells: int = MOST_CELLS  # and sums of which they are made, that a release may keep
    signing_key: Path | None = None  # the file of the key that signs manifests
    metrics: str | None = None  # where releases report of themselves, a path or a URL, as the next two
    traces: str | None = None
    lineage: str | None = None
    path: Path | None = None

    def ledger_for(self, named: str | None) -> str | None:
        """Return the ledger to use where a command names `named`; raises PlanError where that is not the site's."""
        if self.ledger is None:
            return named
        if named not in (None, self.ledger):
            raise PlanError(f"{arg('ledger')}: {self.path} fixes the ledger of this site: leave the option out")
        return self.ledger

    def signing(self) -> "SigningKey | None":
        """Return the key that signs manifests: the site's, or the one that PRDP_SIGNING_KEY names; None without.

        Raises PlanError where there is to be one, and it cannot be read.
        """
        named = self.signing_key or os.environ.get(SIGNING_KEY)
        if not named:
            return None
        from pipeline.publication.signing import load_signing_key  # noqa: PLC0415 — cryptography

        return load_signing_key(Path(named))

    def signing_asked(self, sign: bool) -> "SigningKey | None":
        """Return the key where it is asked to sign; raises PlanError also where there is none."""
        key = self.signing() if sign else None
        if sign and key is None:
            raise PlanError(
                f"{arg('sign')}: there is no key: name one as signing_key in the site's file, or by PRDP_SIGNING_KEY "
                "(prdp ledger admin keys create)"
            )
        return key


def site() -> Site:
    """Return what FILE says, or else the file that PRDP_SITE names; without either everything is left open.

    Raises PlanError on a file that cannot be read or says something else.
    """
    named = os.environ.get(VARIABLE)
    path = FILE if FILE.exists() else Path(named) if named else None
    if path is None:
        return Site()
    data = read_text(path, SITE).data
    for key, value in data.items():
        if key not in KEYS:
            raise PlanError(f"{path}: {key}: unknown key{hint(key, KEYS, 'key')}")
        rule, holds = KEYS[key]
        if not holds(value):
            raise PlanError(f"{path}: {key}: must be {rule}")
    return Site(
        ledger=_place(data.get("ledger"), path.parent),
        metrics=_place(data.get("metrics"), path.parent),
        traces=data.get("traces"),
        lineage=_place(data.get("lineage"), path.parent),
        require_registered=bool(data.get("require_registered")),
        max_left_out=exact(data.get("max_left_out", SHARE)),
        signing_key=(path.parent / data["signing_key"]).absolute() if data.get("signing_key") else None,
        max_cells=data.get("max_cells", MOST_CELLS),
        path=path,
    )


def operator_named(option: str | None) -> str:
    """Return the operator to record: `option`, or PRDP_OPERATOR, or the login name; nothing proves it."""
    name = option or os.environ.get(OPERATOR)
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container's user without a name
            name = f"user {os.getuid()}"
    if len(name) > 200 or not name.isprintable():
        raise PlanError(f"{arg('operator')}: must be at most 200 printable characters")
    return name


def _place(named: str | None, folder: Path) -> str | None:
    return named if named is None or "://" in named else str((folder / named).absolute())
