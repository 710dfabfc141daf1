"""A plan without mistakes, which tests edit, and the lines that a plan's mistakes come out as."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.base.errors import PlanError
from pipeline.plan.load import load_plan

PLAN = """\
release: cbp-2023-county
supersedes: cbp-2023-first
dataset:
  name: cbp-2023
  path: data/microdata
  record: establishment_id
  duplicates: trust
  unit: record
  bad_records: refuse
  keys: {naics: naics, county: county}
  measures:
    employment: {column: employment, type: integer}
    payroll: {column: payroll, type: decimal, step: 0.5}
domain: {naics: naics.csv, county: counties.csv, vintage: {naics: 2022, county: 2023}}
interval: 0.9
queries:
  - name: establishments
    count: records
    by: [naics4, county]
    mechanism: {kind: gaussian, sigma: 2}
  - name: employment
    sum: employment
    by: [naics3, state]
    where: {naics2: ["31-33"], state: ["01", "02"]}
    mechanism: {kind: log, a: 1, sigma: 0.5}
  - name: payroll
    sum: payroll
    by: [nation]
    mechanism: {kind: laplace, sigma: 20, policy: paper}
budget:
  - {at: {employment: 10, payroll: 500}, rho: 2.0}
  - {at: {employment: 5000, payroll: 300000, naics2: "31-33"}, rho: 40}
"""
NAICS = ("3111", "3119", "3211", "4411", "1111")
COUNTIES = ("01001", "01003", "02020", "36061")


def write_domain(folder: Path) -> Path:
    for name, codes in (("naics", NAICS), ("counties", COUNTIES)):
        (folder / f"{name}.csv").write_text("code,name\n" + "".join(f"{code},a name\n" for code in codes))
    (folder / "cells.csv").write_text("naics,county\n3111,01001\n3211,02020\n")
    return folder


def without_numbers(lines: Iterable[str]) -> list[str]:
    """Return lines about keys of a file without the number of the file's line."""
    return [re.sub(r": line \d+: (?=[a-z_]+[\[.:])", ": ", line) for line in lines]


def lines(folder: Path, text: str | bytes) -> list[str]:
    """Return the lines of the PlanError, without the folder, and without the file's line where they name a key."""
    path = folder / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert caught.value.exit_code == 2
    return without_numbers(line.replace(f"{folder}/", "") for line in str(caught.value).split("\n"))
