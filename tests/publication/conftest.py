"""What tests of public pages share: a small site, one of the whole country, and a tab of a browser to look at them."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.devtools import Page, browser
from tests.support.pages import INDUSTRIES
from tests.support.submit import released
from tests.support.world import records, write_world

LARGE = {"53033": 60, "06037": 90, "36061": 50, "17031": 50, "48201": 45, "41067": 9, "36047": 30, "22071": 12}
LARGE |= {"29510": 14, "29189": 25, "25025": 20, "11001": 16, "35013": 6, "06075": 18, "04013": 40, "53053": 12}
DOMAIN = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "vintage": {"naics": 2022, "county": 2022}}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    plan = write_world(folder, records(2000), contact="statistics@example.org")
    return released(plan, folder / "run", csv=True)


@pytest.fixture(scope="session")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of all counties, under their names, in some industries; large ones are large."""
    folder = tmp_path_factory.mktemp("country")
    random, conf = np.random.default_rng(5), Path(__file__).parents[2] / "conf"
    with (conf / "codes/counties_2022.csv").open(newline="") as file:
        names = {row["code"]: row["name"] for row in csv.DictReader(file)}
    size = np.array([LARGE.get(code, 0.15) for code in names])
    microdata = records(20_000)
    county = random.choice(list(names), len(microdata), p=size / size.sum())
    weight = np.array([many for _, many in INDUSTRIES.values()])
    naics = random.choice(list(INDUSTRIES), len(microdata), p=weight / weight.sum())
    for column, codes in ((1, naics), (2, county)):
        microdata = microdata.set_column(column, microdata.schema.names[column], [codes])
    noise = {"kind": "gaussian", "sigma": 2}
    levels = (["naics6", "county"], ["naics3", "state"], ["county"], ["state"], ["naics2"])
    queries = [{"name": "_".join(by), "count": "records", "by": by, "mechanism": noise} for by in levels]
    jobs = {"kind": "gaussian", "sigma": 400}
    queries.append({"name": "jobs", "sum": "employment", "by": ["county"], "mechanism": jobs})
    plan = write_world(
        folder, microdata, queries=queries, title="Business counts", domain=DOMAIN, naics=tuple(INDUSTRIES)
    )
    shutil.copy(conf / "codes/counties_2022.csv", folder / "domain/counties.csv")
    with (folder / "domain/naics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("code", "name"), *((code, name) for code, (name, _) in INDUSTRIES.items())])
    return released(plan, folder / "run")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab
