"""The size of a release: counted against its tables, and refused beyond what a site allows."""

import json
from pathlib import Path

import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.engines.totals import layout_of
from pipeline.plan.load import load_plan
from pipeline.plan.structure import require_size, size_of
from tests.support.world import records, write_world


def test_the_size_is_that_of_the_tables_and_of_the_sums_kept(tmp_path: Path) -> None:
    plan = load_plan(write_world(tmp_path, None))
    size, layout = size_of(plan), layout_of(plan)
    assert size.cells == sum(table.cells.size for table in layout.tables)
    assert size.sums == sum(base.size * len(base.addends) for base in layout.spec.bases)
    assert size.kept == size.cells + size.sums
    require_size(plan, size.kept)
    with pytest.raises(PlanError, match=rf"more than the {size.kept - 1:,} that this site allows: the largest table"):
        require_size(plan, size.kept - 1)


def test_a_release_beyond_the_sites_limit_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_world(tmp_path, records(20))
    assert main(["explain", str(path), "--at", "employment=10,payroll=10", "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["size"]
    site = tmp_path / "site.yaml"
    ledger = tmp_path / "ledger" / "ledger.sqlite"
    assert main(["ledger", "create", str(ledger)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("PRDP_SITE", str(site))
    site.write_text(yaml.safe_dump({"max_cells": size["cells"] + size["sums"] - 1}))
    command = ["release", str(path), "--ledger", str(ledger), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "have max_cells raised" in capsys.readouterr().err
    assert main(["ledger", "show", "--ledger", str(ledger), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    site.write_text("max_cells: 0")
    assert main(command) == 2
    assert "max_cells: must be a whole number above 0" in capsys.readouterr().err
