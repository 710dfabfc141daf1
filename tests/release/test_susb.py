"""The plan of firms by state, sector and size that ships: released of synthetic microdata, verified, and checked."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from jobs.cli import main
from pipeline.publication.manifest import verify_release
from pipeline.storage.paths import locate
from tests.support.spark import ROOT
from tests.support.submit import Place, submit

EDGES, SIZES = (0, 5, 20, 100, 500), ("0-4", "5-19", "20-99", "100-499", "500+")
SECTORS = {"32": "31-33", "33": "31-33", "31": "31-33", "44": "44-45", "45": "44-45", "48": "48-49", "49": "48-49"}


def truth(folder: Path) -> dict[str, pd.Series]:
    """What the tables are before noise, by pandas."""
    rows = pd.read_parquet(folder / "microdata")
    total = rows.groupby("firm_id")["employment"].transform("sum")
    rows["enterprise_size"] = [SIZES[np.searchsorted(EDGES, each, "right") - 1] for each in total]
    rows["state"] = rows["county"].str[:2]
    rows["naics2"] = rows["naics"].str[:2].map(lambda code: SECTORS.get(code, code))
    cells = rows.groupby(["state", "naics2", "enterprise_size"])
    return {
        "firms": cells["firm_id"].nunique(),
        "firms_nation": rows.groupby("enterprise_size")["firm_id"].nunique(),
        "establishments": cells.size(),
        "employment": cells["employment"].sum(),
        "payroll": cells["payroll"].sum(),
    }


def product(by: Sequence[str] = ("state", "naics2", "enterprise_size"), *, share: bool = False) -> dict[str, Any]:
    """A product with a file of firms; with fewer levels they would be added up over the others."""
    shares = {"part": {"meaning": "Share", "unit": "%", "share": "firms", "over": "enterprise_size", "times": 100}}
    value = {"name": "firms", "meaning": "Firms", "value": "part" if share else "firms"}
    codes = [{"name": level, "meaning": level, "codes": {level: {}}} for level in by]
    layout = {"file": "firms.csv", "about": "Firms.", "rows": [{"by": list(by), "values": {"firms": "firms"}}]}
    return {
        "product": "firms",
        "title": "Firms",
        "levels": {level: {"meaning": level} for level in ("state", "naics2", "enterprise_size")},
        "measures": {"firms": {"meaning": "Firms", "unit": "firms"}},
        **({"derived": shares} if share else {}),
        "csv": False,
        "tables": [{"name": "firms", "values": {"firms": "firms"}}],
        "layouts": [layout | {"columns": [*codes, value]}],
    }


def test_the_plan_of_firms_is_released_and_says_what_pandas_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--records", "4000", "--out", str(tmp_path), "--quiet"]) == 0
    shutil.copy(ROOT / "conf/plans/susb.yaml", tmp_path / "plan.yaml")
    place = Place(tmp_path / "plan.yaml", tmp_path / "place")
    released = place.out / "susb"
    attempt = submit(place).attempt
    verify_release(locate(released))
    for name, adds_up in (("firms", False), ("firms_nation", False), ("employment", True)):
        (page,) = {each.read_text() for each in released.rglob(f"{name}.html")}
        assert ("Cells of this table can be added up" in page) is adds_up
        assert ("do not add up: each of them counts" in page) is not adds_up
    manifest, policy = (json.loads(next(released.rglob(each)).read_text()) for each in ("release.json", "policy.json"))
    assert manifest["guarantee"] == policy["guarantee"]  # of attempts and of plans: what follows from whole firms
    assert "1 for a count of firms" in policy["guarantee"]["formula"]
    assert "may move its whole firm" in policy["guarantee"]["words"]
    known = truth(tmp_path)
    for name, exact in known.items():
        table = pd.read_parquet(released / attempt / "tables" / name)
        keys = [column for column in table if column not in ("value", "lower", "upper", "standard_error")]
        cells = pd.MultiIndex.from_frame(table[keys]) if len(keys) > 1 else table[keys[0]]
        of_cell = exact.reindex(cells, fill_value=0).to_numpy()
        errors = (table["value"] - of_cell) / table["standard_error"]
        assert abs(errors.mean()) < 5 / np.sqrt(len(errors))
        # a share near 95 % of the intervals holds it; in so few cells as five, four at least
        held = table["lower"].le(of_cell) & table["upper"].ge(of_cell)
        assert held.mean() >= (0.8 if len(errors) < 100 else 0.93)
    firms, once = known["firms"], pd.read_parquet(released / attempt / "tables/firms_nation")["value"]
    assert firms.sum() > once.sum() + 100  # cells do not add up: a firm in two states counts in both
    capsys.readouterr()
    reconciled = tmp_path / "reconciled"
    assert main(["reconcile", str(released), "--out", str(reconciled), "--quiet"]) == 0
    (alone,) = reconciled.rglob("firms_nation*.parquet")  # what no other table tells stays as it was released
    assert np.allclose(pd.read_parquet(alone)["value"], once)
    assert main(["derive", str(released), "--total", "owners", "--published", "--where", "state=06"]) == 2
    assert "do not add up" in capsys.readouterr().err
    assert main(["derive", str(released), "--total", "owners", "--where", "state=06"]) == 2
    capsys.readouterr()
    files = ["--out", str(tmp_path / "files"), "--year", "2022"]
    cases = [({"by": ["state", "naics2"]}, "a sum over enterprise_size"), ({"share": True}, "each count an owner")]
    for changes, wrong in cases:
        (tmp_path / "product.yaml").write_text(yaml.safe_dump(product(**changes)))
        assert main(["product", str(released), "--product", str(tmp_path / "product.yaml"), *files]) == 2
        assert wrong in capsys.readouterr().err
    single = ["--total", "owners", "--published", "--where", "enterprise_size=0-4"]
    assert main(["derive", str(released), *single]) == 0
