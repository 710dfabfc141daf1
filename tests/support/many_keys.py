"""Plans of many keys: lists with levels that have holes, optional keys, `other` and classes; their tables by pandas."""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.support.submit import Place, submit

NAICS = ("311111", "311811", "445110", "722511")
CBSA = {"01001": "33860", "01003": "", "06037": "31080", "36061": "35620", "36005": "35620"}
GROUP = {"C": "firm", "S": "firm", "P": ""}
ZIPS = ("00501", "10001", "90001")
EDGES = {"size": ("employment", [0, 5, 10, 50], ["0-4", "5-9", "10-49", "50+"])}
EDGES["band"] = ("payroll", [0, 0.5, 100], ["0", "0.5-99.5", "100+"])
SECTOR = {"31": "31-33", "44": "44-45"}
NOISE = {"kind": "gaussian", "sigma": 0.001, "policy": "paper"}  # so narrow that values are the totals
OUTSIDE = {"naics": "999999", "county": "56045", "form": "X", "zip": "99999"}

KEYS: Mapping[str, Sequence[str]] = {  # by key its levels
    "naics": ["naics2", "naics3", "naics6"],
    "county": ["nation", "state", "county", "cbsa"],
    "form": ["form", "group"],
    "zip": ["zip"],
    "size": ["size"],
    "band": ["band"],
}


def microdata(count: int = 3000, seed: int = 1) -> pd.DataFrame:
    """Establishments, some with codes in no list, and some without a ZIP code."""
    draw = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "id": [f"E{i}" for i in range(count)],
        "naics": draw.choice([*NAICS, OUTSIDE["naics"]], count),
        "county": draw.choice([*CBSA, OUTSIDE["county"]], count),
        "lfo": draw.choice([*GROUP, OUTSIDE["form"]], count),
        "zip": draw.choice(np.array([*ZIPS, OUTSIDE["zip"], None], dtype=object), count),
        "emp": draw.integers(0, 70, count),
        "pay": draw.integers(0, 300, count) / 2,
    }
    return pd.DataFrame(columns)


def coded(table: pd.DataFrame, other: bool = True) -> pd.DataFrame:
    """The codes of all records at all levels by pandas, None where they have none, and what is summed."""
    naics = table.naics.where(table.naics.isin(NAICS))
    county = table.county.where(table.county.isin(CBSA))
    form = table.lfo.where(table.lfo.isin(GROUP), "other" if other else None)
    found = pd.DataFrame(
        {
            "naics6": naics,
            "naics3": naics.str[:3],
            "naics2": naics.str[:2].replace(SECTOR),
            "county": county,
            "state": county.str[:2],
            "nation": county.where(county.isna(), "US"),
            "cbsa": county.map(CBSA),
            "form": form,
            "group": form.map(GROUP | {"other": "other"}),
            "zip": table.zip.where(table.zip.isin(ZIPS)),
            "employment": table.emp,
            "payroll": table.pay,
        }
    )
    for key, (measure, edges, names) in EDGES.items():
        classes = pd.cut(found[measure], [*edges, np.inf], right=False, labels=names)
        found[key] = classes.astype(object)
    return found.replace({"": None}).astype(object).where(lambda frame: frame.notna(), None)


def expected(codes: pd.DataFrame, query: Mapping[str, Any], cells: pd.DataFrame) -> dict[tuple[str, ...], float]:
    """A query's table: its public cells from all finest cells, and their totals by a group-by."""
    by = query["by"]

    def met(frame: pd.DataFrame) -> pd.DataFrame:
        kept = frame[list({*by, *query["where"]})].notna().all(axis=1)
        for level, chosen in query["where"].items():
            kept &= frame[level].isin(chosen)
        return frame[kept]

    groups = met(codes).groupby(by, sort=False)
    sums = groups.size() if "count" in query else groups[query["sum"]].sum()
    totals = {key if isinstance(key, tuple) else (key,): value for key, value in sums.items()}
    public = sorted(set(met(cells)[by].itertuples(index=False, name=None)))
    assert totals.keys() <= {*public}
    return {cell: float(totals.get(cell, 0)) for cell in public}


def public_cells(keys: Sequence[str], other: bool = True) -> pd.DataFrame:
    """All combinations of finest public codes, as the rows of `coded`."""
    of_key = {
        "naics": NAICS,
        "county": tuple(CBSA),
        "form": (*GROUP, *([OUTSIDE["form"]] if other else [])),
        "zip": ZIPS,
        "size": (0, 5, 10, 50),
        "band": (0.0, 0.5, 100.0),
    }
    chosen = [of_key[key] if key in keys else of_key[key][:1] for key in of_key]
    rows = pd.DataFrame(product(*chosen), columns=["naics", "county", "lfo", "zip", "emp", "pay"])
    return coded(rows, other)


def queries_of(seed: int, keys: Sequence[str], codes: pd.DataFrame, number: int) -> list[dict[str, Any]]:
    """Random queries: levels of some keys, filters on others, noise by part."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = []
    for i in range(number):
        by = [draw.choice(KEYS[key]) for key in draw.sample([*keys], draw.randint(1, min(4, len(keys))))]
        where = {}
        for level in draw.sample([level for key in keys for level in KEYS[key]], draw.choice([0, 0, 1, 2])):
            known = sorted({*codes[level].dropna()})
            where[level] = draw.sample(known, draw.randint(1, len(known)))
        statistic = draw.choice([{"count": "records"}, {"sum": "employment"}, {"sum": "payroll"}])
        mechanism: dict[str, Any] = dict(NOISE)
        if "size" in by and len(known := where.get("size", EDGES["size"][2])) > 1:
            mechanism = {"by": "size", "parts": {known[0]: NOISE}, "others": NOISE | {"sigma": 0.0005}}
        made.append(statistic | {"name": f"q{i}", "by": by, "where": where, "mechanism": mechanism})
    return made


def met_by_any(queries: Sequence[dict[str, Any]], cells: pd.DataFrame) -> list[dict[str, Any]]:
    """The queries that some public cell meets: others are refused."""
    return [query for query in queries if expected(cells.iloc[:0], query, cells)]


def write(folder: Path, keys: Sequence[str], queries: Sequence[dict[str, Any]], **changes: Any) -> Place:
    """The plan of the keys, with its lists."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "naics.csv").write_text("code\n" + "".join(f"{code}\n" for code in NAICS))
    (folder / "counties.csv").write_text("code,cbsa\n" + "".join(f"{code},{of}\n" for code, of in CBSA.items()))
    (folder / "forms.csv").write_text("code,name,group\n" + "".join(f"{code},x,{of}\n" for code, of in GROUP.items()))
    (folder / "zips.csv").write_text("code\n" + "".join(f"{code}\n" for code in ZIPS))
    domain: dict[str, Any] = {
        "naics": "naics.csv",
        "county": {"list": "counties.csv", "levels": ["cbsa"]},
        "form": {"list": "forms.csv", "levels": ["group"]},
        "zip": {"list": "zips.csv", "optional": True},
        "size": {"of": "employment", "classes": EDGES["size"][1]},
        "band": {"of": "payroll", "classes": EDGES["band"][1]},
    }
    columns = {"naics": "naics", "county": "county", "form": "lfo", "zip": "zip"}
    plan = {
        "release": "keys",
        "dataset": {
            "name": "keys",
            "path": "microdata",
            "record": "id",
            "keys": {key: column for key, column in columns.items() if key in keys},
            "measures": {
                "employment": {"column": "emp", "type": "integer"},
                "payroll": {"column": "pay", "type": "decimal", "step": 0.5},
            },
            **changes.pop("dataset", {}),
        },
        "domain": {key: domain[key] for key in keys} | ({"other": ["form"]} if "form" in keys else {}),
        "max_left_out": 0.99,
        "queries": list(queries),
        "budget": [{"at": {"employment": 10, "payroll": 50}, "rho": 1e20}],
        **changes,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return Place(folder / "plan.yaml", folder)


def in_files(folder: Path, table: pd.DataFrame) -> Path:
    (folder / "microdata").mkdir(parents=True)
    for i in range(3):
        part = pa.Table.from_pandas(table.iloc[i::3], preserve_index=False)
        pq.write_table(part, folder / "microdata" / f"{i}.parquet", row_group_size=200)
    return folder / "microdata"


def tables(place: Place, engine: Any = None) -> tuple[dict[str, dict[tuple[str, ...], float]], dict[str, bytes]]:
    """Release under the known key: every table's values by cell, and the bytes of its files."""
    folder = place.out / "keys" / submit(place, engine=engine).attempt / "tables"
    found, files = {}, {}
    for path in sorted(folder.iterdir()):
        table = pq.read_table(path)
        columns = [table.column(name).to_pylist() for name in table.column_names[:-4]]
        assert table.column_names[-4:] == ["value", "lower", "upper", "standard_error"]
        keys = list(zip(*columns, strict=True))
        assert keys == sorted(keys, key=lambda cell: list(map(rank, table.column_names, cell)))
        found[path.name] = dict(zip(keys, map(round_to_step, table.column("value").to_pylist()), strict=True))
        files |= {f"{path.name}/{each.name}": each.read_bytes() for each in sorted(path.iterdir())}
    return found, files


def rank(level: str, code: str) -> tuple[int, str]:
    """Where a code stands among those of its level: classes in their order, `other` last."""
    return (EDGES[level][2].index(code), "") if level in EDGES else (code == "other", code)


def round_to_step(value: float) -> float:
    return round(value * 2) / 2


ALL = ("naics", "county", "form", "zip", "size", "band")
