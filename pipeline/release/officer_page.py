"""Writes the officers' page of a ledger: a confidential file, apart from all releases."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pipeline.errors import StateError
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.preparation.confidential import release_folders, require_outside
from pipeline.release.attempts import attempt_of, root_of_name
from pipeline.report.officer import officer_page
from pipeline.report.site.write import staged_page
from pipeline.storage.local import LocalPath

GENERATOR = b'content="prdp ledger page"'  # of the pages that a new one may replace


def write_officer_page(ledger: Ledger, out: Path) -> Path:
    """Write the page to the file `out`, complete or not at all, with mode 0600; return its absolute path.

    An earlier page there is replaced, and nothing else. Raises StateError where another file lies there, it cannot be
    written, or releases are published or staged beside it.
    """
    path = Path(os.path.abspath(out))
    require_outside(path, release_folders(ledger))
    page = officer_page(ledger.address, ledger.entries(), lambda state: _staged(ledger, state), datetime.now(UTC))
    try:
        if os.path.lexists(path) and (path.is_symlink() or GENERATOR not in path.read_bytes()):
            raise StateError(f"--out {out}: is there already, and no page of a ledger: give a new file")
        LocalPath(path).write_durably(page.encode())
    except OSError as error:
        raise StateError(f"--out {out}: it cannot be written ({error.strerror}): give another file") from None
    return path


def _staged(ledger: Ledger, state: ReleaseState) -> tuple[str, str | None]:
    """Return where the page of a held release lies, and a link to it where it is a file that this user sees."""
    attempt = root_of_name(ledger, state.stagings[-1]) / state.release / attempt_of(state)
    page, local = staged_page(attempt), staged_page(attempt).as_path()
    if local is not None:
        with suppress(OSError):
            if local.is_file():
                return str(page), local.as_uri()
            return str(attempt / "report.html"), None  # an earlier build staged no site
    return str(page), None
