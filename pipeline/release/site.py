"""What a site lays down for everyone who runs prdp on its machines: one ledger, and registered datasets only.

It keeps honest people from mistakes: whoever brings another prdp is held back by the rights on microdata and database
alone.
"""

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PlanError
from pipeline.names import hint
from pipeline.plan.text import SITE, read_text

FILE = Path("/etc/prdp/site.yaml")  # where it is there, no variable of a user's takes its place
VARIABLE, OPERATOR = "PRDP_SITE", "PRDP_OPERATOR"
KEYS = {"ledger": str, "require_registered": bool}


@dataclass(frozen=True)
class Site:
    """`ledger`: the one to be used, None for a free choice; `require_registered`: plans need a registered dataset."""

    ledger: str | None = None
    require_registered: bool = False
    path: Path | None = None

    def ledger_for(self, named: str | None) -> str | None:
        """Return the ledger to use where a command names `named`; raises PlanError where that is not the site's."""
        if self.ledger is None:
            return named
        if named not in (None, self.ledger):
            raise PlanError(f"--ledger: {self.path} fixes the ledger of this site: leave the option out")
        return self.ledger


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
        if not isinstance(value, KEYS[key]):
            raise PlanError(f"{path}: {key}: must be {'true or false' if KEYS[key] is bool else 'text'}")
    return Site(_ledger(data, path.parent), bool(data.get("require_registered")), path)


def operator_named(option: str | None) -> str:
    """Return the operator to record: `option`, or PRDP_OPERATOR, or the login name; nothing proves it."""
    name = option or os.environ.get(OPERATOR)
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container's user without a name
            name = f"user {os.getuid()}"
    if len(name) > 200 or not name.isprintable():
        raise PlanError("--operator: must be at most 200 printable characters")
    return name


def _ledger(data: Mapping[str, object], folder: Path) -> str | None:
    """Return the site's ledger; a path is relative to the file."""
    named = data.get("ledger")
    if named is None:
        return None
    text = str(named)
    return text if "://" in text else str((folder / text).absolute())
