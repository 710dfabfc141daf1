"""What tests of the ledger share: a ledger in a file of the test's own folder."""

from pathlib import Path

import pytest

from pipeline.ledger.store import Ledger, create_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
