"""What a complete attempt is: its files and what is told of them, and the names that files may have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.canonical import digest
from pipeline.errors import PlanError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class StagedFile:
    """A file of an attempt: `sha256` in hexadecimal, and its size in `bytes`."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Facts:
    """What a complete attempt is: the `about` given to `complete`, and every file by its path in the attempt."""

    about: Mapping[str, Any]
    files: Mapping[str, StagedFile]

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON, as attempt.json holds them."""
        files = {path: {"sha256": file.sha256, "bytes": file.bytes} for path, file in self.files.items()}
        return {"about": dict(self.about), "files": files}

    @property
    def digest(self) -> str:
        """The digest over the contents of all files and what is told of them: what the ledger publishes."""
        return digest(self.to_json())


def safe_name(kind: str, name: str) -> str:
    """Return `name` where it can name a file or folder everywhere; raises PlanError otherwise."""
    if not _NAME.fullmatch(name):
        raise PlanError(f"{kind} {name!r}: use letters, digits, '.', '_' and '-', at most 128, a letter or digit first")
    return name
