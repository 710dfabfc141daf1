"""Generated establishments beside the table they follow: sums by size class of the firm and sector."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from udfs.records.codes import roll_up

TABLE = Path(__file__).parents[2] / "conf" / "economy" / "susb_2021.csv"
MEASURES = ("establishments", "employment", "payroll")
SIZES = {"0-4": 0, "5-9": 5, "10-19": 10, "20-99": 20, "100-499": 100, "500+": 500}  # least employment of the firm
DIVIDED = ("31-33", "44-45", "48-49")  # sectors of which the table tells no size classes


def read(microdata: Path) -> pd.DataFrame:
    """The records with the measure `establishments` = 1, their sector, state, and the size class of their firm."""
    records: pd.DataFrame = pq.read_table(microdata).to_pandas()
    sectors = {code: roll_up(code, "naics2") for code in records["naics"].unique()}
    return classified(
        records.assign(establishments=1, sector=records["naics"].map(sectors), state=records["county"].str[:2])
    )


def classified(records: pd.DataFrame) -> pd.DataFrame:
    total = records.groupby("firm_id")["employment"].transform("sum")
    return records.assign(size=np.array(list(SIZES))[np.searchsorted(list(SIZES.values()), total, side="right") - 1])


def real(by: str) -> pd.DataFrame:
    """The table's measures by `by` (sector, size or state), over the sectors that have what is asked."""
    table = pd.read_csv(TABLE, dtype={"state": str, "sector": str})
    table = table[(table["state"] == "00") != (by == "state")]
    if by == "size":
        table = table[table["size"] != "total"]
    return table.groupby(by)[list(MEASURES)].sum()


def generated(records: pd.DataFrame, by: str) -> pd.DataFrame:
    if by == "size":
        records = records[~records["sector"].isin(DIVIDED)]
    return records.groupby(by)[list(MEASURES)].sum()


def gaps(records: pd.DataFrame, by: str) -> pd.DataFrame:
    """Generated less real shares of each measure."""
    ours, theirs = generated(records, by), real(by)
    return (ours / ours.sum()).reindex(theirs.index, fill_value=0.0) - theirs / theirs.sum()


TOLERANCES = {
    "size": {"establishments": 0.001, "employment": 0.01, "payroll": 0.03},
    "sector": {"establishments": 0.0005, "employment": 0.005, "payroll": 0.04},
    "state": {"establishments": 0.002, "employment": 0.01, "payroll": 0.02},
}
"""Largest gaps between shares that a generated set of 300,000 records may show; giants make payroll scatter most."""


def misfits(records: pd.DataFrame) -> list[str]:
    """The measures and groupings whose gaps exceed the tolerances."""
    return [
        f"{measure} by {by}"
        for by, tolerances in TOLERANCES.items()
        for measure, tolerance in tolerances.items()
        if not gaps(records, by)[measure].abs().max() <= tolerance
    ]
