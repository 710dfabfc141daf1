"""The three example products: made, verified, and held against the truth of their synthetic microdata.

    python -m benchmarks.examples [NAME] [--records N] [--out FOLDER]

Of each it writes microdata, a release with its public pages, a product and, of enterprises, SDMX; prints how long that
took, how often intervals hold the true total and how large errors are beside the stated ones; and reads the files back
with pandas, DuckDB and pysdmx. It ends with an error where a check fails.
"""

import argparse
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import yaml

import prdp

HOLD = 0.94  # of intervals of 95 %, at least
FARTHEST = 4  # standard errors, at which errors are cut: squares of heavy tails have no law of large numbers
ERRORS = (0.7, 1.1)  # root mean squares of errors over stated standard errors, so cut
OTHERS = re.compile(r"(?i)county business patterns|\bcbp\b|census bureau")
FOREIGN = re.compile(r"(?i)\b(an industry|naics\w*|count(y|ies)|establishments?|firms?|census bureau)\b")
PUBLIC = (".html", ".json", ".md", ".csv", ".txt")


@dataclass(frozen=True)
class Example:
    """An example: the values of its plan's variables, words that its public files must not have, and its export."""

    name: str
    words: re.Pattern[str]
    values: Mapping[str, str] = field(default_factory=dict)
    sdmx: bool = False


EXAMPLES = (
    Example("labour", OTHERS, {"year": "2024", "quarter": "1"}),
    Example("farms", FOREIGN),
    Example("enterprises", FOREIGN, sdmx=True),
)


def make(example: Example, records: int, out: Path, economy: str | Path | None = None) -> dict[str, float]:
    """Make and check an example in a new folder; return seconds by step. AssertionError says which check failed."""
    seconds: dict[str, float] = {}

    def timed(step: str, begun: float) -> None:
        seconds[step] = time.perf_counter() - begun

    begun = time.perf_counter()
    plan_file = prdp.generate(records, out, economy=economy or example.name, seed=1)
    timed("generate", begun)
    begun = time.perf_counter()
    plan = prdp.load_plan(plan_file, set=example.values)
    assert plan.explain().within_limits, "the plan breaks its limits"
    ledger = out.with_name(f"{out.name}-ledger") / "ledger.sqlite"
    opened = prdp.create_ledger(ledger)
    if (out / "family.yaml").is_file():
        opened.register(plan.source["dataset"]["family"], out / "family.yaml")
    release = plan.release(ledger=ledger, out=out / "releases")
    timed("release", begun)
    begun = time.perf_counter()
    prdp.verify(release.path)
    made = prdp.product(release.path, out / "files", product=out / "product.yaml", year=2024)
    prdp.verify(out / "files")
    if example.sdmx:
        prdp.read_release(release.path).export("sdmx", out / "sdmx", agency="EXAMPLE", year=2024)
    timed("product", begun)
    begun = time.perf_counter()
    for line in against_truth(plan, release, out):
        print(line)
    for line in layouts_against_truth(plan, out):
        print(line)
    read_back(out / "files", made)
    if example.sdmx:
        read_sdmx(out / "sdmx")
    strange = sorted(set(strange_words(example, out)))
    assert not strange, f"public files speak of {strange}"
    timed("check", begun)
    return seconds


def against_truth(plan: prdp.Plan, release: Any, out: Path) -> Iterator[str]:
    """Yield a line a table: intervals that hold the true total, and errors over stated ones, of sums by DuckDB."""
    data = plan.source
    keys, measures = data["dataset"]["keys"], data["dataset"]["measures"]
    micro = _with_levels(pd.read_parquet(out / "microdata"), data, out)
    tables, connection = prdp.read_release(release.path), duckdb.connect()
    connection.register("micro", micro)
    for query in data["queries"]:
        by = ", ".join(f'"{level}"' for level in query["by"])
        owner = f'count(DISTINCT "{data["dataset"].get("unit")}")'
        counts = {"records": "count(*)", "owners": owner}
        what = counts[query["count"]] if "count" in query else f'sum("{measures[query["sum"]]["column"]}")'
        truth = connection.sql(f"SELECT {by}, {what}::DOUBLE AS truth FROM micro GROUP BY ALL").df()
        table = tables[query["name"]].merge(truth, how="left", on=list(query["by"])).fillna({"truth": 0.0})
        assert abs(table["truth"].sum() - float(truth["truth"].sum())) < 1, f"{query['name']}: lacks {keys}"
        error = table["value"] - table["truth"]
        hold = float(((table["lower"] <= table["truth"]) & (table["truth"] <= table["upper"])).mean())
        over = float(np.sqrt(((error / table["standard_error"]).clip(-FARTHEST, FARTHEST) ** 2).mean()))
        share = f"{100 * hold:.1f} % of intervals hold"
        yield f"  {query['name']}: {len(table):,} cells, {share}, errors {over:.2f} of stated"
        spread = 5 / np.sqrt(len(table))  # of few cells chance alone moves both
        assert hold > HOLD - spread, query["name"]
        assert ERRORS[0] - spread < over < ERRORS[1] + spread, query["name"]


def layouts_against_truth(plan: prdp.Plan, out: Path) -> Iterator[str]:
    """Yield a line a column with ranges, of layouts by one list of levels: how many hold the true total or ratio."""
    data, product = plan.source, yaml.safe_load((out / "product.yaml").read_text(encoding="utf-8"))
    micro = _with_levels(pd.read_parquet(out / "microdata"), data, out)
    queries = {query["name"]: query for query in data["queries"]}
    for layout in product["layouts"]:
        rows, *others = layout["rows"]
        keys = {
            level: each["name"] for each in layout["columns"] for level, how in each.get("codes", {}).items() if not how
        }
        if others or not set(rows["by"]) <= keys.keys():
            continue
        path, names = (
            out / "files" / "layouts" / layout["file"].replace("{yy}", "24"),
            [keys[level] for level in rows["by"]],
        )
        ends = pd.read_csv(path.with_stem(f"{path.stem}_ranges"), dtype=dict.fromkeys(names, str)).set_index(names)
        groups, true = micro.groupby(rows["by"]), {}
        for name, table in rows["values"].items():
            of = queries[table]
            owners = "count" in of and of["count"] == "owners"
            sums = groups[data["dataset"]["unit"]].nunique() if owners else groups.size()
            sums = sums if "count" in of else groups[data["dataset"]["measures"][of["sum"]]["column"]].sum()
            true[name] = sums.reindex(ends.index, fill_value=0).astype(float)
        for name, of in product.get("lists", {}).items():
            column = pd.read_csv(out / of["file"], dtype=dict.fromkeys(of["codes"].values(), str))
            true[name] = column.set_index(next(iter(of["codes"].values())))[of["number"]].reindex(ends.index)
        for name, of in product["derived"].items():
            if {*_listed(of.get("ratio", "-")), *_listed(of.get("per", "-"))} <= true.keys():
                above, below = (sum(true[each] for each in _listed(of[side])) for side in ("ratio", "per"))
                true[name] = above / below * float(Fraction(str(of.get("times", 1))))
        for each in layout["columns"]:
            if each.get("value") in true and f"{each['name']}_low" in ends and "of" not in each:
                low, high, truth = ends[f"{each['name']}_low"], ends[f"{each['name']}_high"], true[each["value"]]
                shown = low.notna() & np.isfinite(truth)
                count = max(int(shown.sum()), 1)
                hold = float(((low <= truth) & (truth <= high) & shown).sum()) / count
                yield f"  {path.name}: {each['name']}: {100 * hold:.1f} % of {count:,} ranges hold"
                spread = 5 * np.sqrt(0.05 * 0.95 / count)  # five deviations of chance
                assert not shown.any() or hold > HOLD - spread, each["name"]


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _with_levels(micro: pd.DataFrame, data: Mapping[str, Any], out: Path) -> pd.DataFrame:
    """Return the microdata with a column for each level, from lists and classes alone."""
    micro = micro.rename(columns={column: key for key, column in data["dataset"]["keys"].items()})
    for key, of in data["domain"].items():
        if isinstance(of, dict) and "of" in of:
            starts = [*of["classes"], np.inf]
            names = [f"{low}-{high - 1}" if high < np.inf else f"{low}+" for low, high in pairwise(starts)]
            sizes = micro[of["of"]]
            if of.get("per") == "owner":
                sizes = sizes.groupby(micro[data["dataset"]["unit"]]).transform("sum")
            micro[key] = pd.cut(sizes, starts, right=False, labels=names).astype(str)
        elif isinstance(of, dict) and "levels" in of:
            rows = pd.read_csv(out / of["list"], dtype=str, keep_default_na=False)
            code, above = of.get("code", "code"), [of["parent"]] if "parent" in of else of["levels"]
            for level, title in zip(of["levels"], above, strict=True):
                micro[level] = micro[key].map(dict(zip(rows[code], rows[title], strict=True)))
    if "naics" in micro:
        ranges = {code: sector for sector in ("31-33", "44-45", "48-49") for code in _between(sector)}
        micro["naics2"] = micro["naics"].str[:2].replace(ranges)
        micro["naics3"], micro["state"] = micro["naics"].str[:3], micro["county"].str[:2]
    return micro


def _between(sector: str) -> list[str]:
    first, last = map(int, sector.split("-"))
    return [str(number) for number in range(first, last + 1)]


def read_back(files: Path, made: Mapping[str, Any]) -> None:
    """Read every layout with pandas and DuckDB: the same figures in CSV and Parquet, in the product's columns."""
    layouts = yaml.safe_load((files.parent / "product.yaml").read_text(encoding="utf-8"))["layouts"]
    for layout in layouts:
        path = files / "layouts" / layout["file"].replace("{yy}", "24")
        columns = [each["name"] for each in layout["columns"]]
        stored = pd.read_parquet(path.with_suffix(".parquet"))
        texts = {name: str for name in columns if pd.api.types.is_string_dtype(stored[name])}
        read = pd.read_csv(path, dtype=texts)
        assert list(read) == list(stored) == columns, path
        for name in columns:
            same = read[name].fillna(0) == stored[name].fillna(0) if name not in texts else True
            assert np.all(same), f"{path}: {name}"
        (rows,) = duckdb.sql(f"SELECT count(*) FROM '{path.with_suffix('.parquet')}'").fetchall()[0]
        assert rows == len(read) > 0, path
        print(f"  {path.name}: {rows:,} rows, {stored.notna().mean().mean():.0%} of its fields shown")
    assert made["product"]


def read_sdmx(folder: Path) -> None:
    """Read the structures and the figures of SDMX with pysdmx."""
    from pysdmx import io

    message = io.read_sdmx(folder / "sdmx-structure.json", validate=True)
    print(f"  SDMX: {len(message.get_dataflows())} dataflows")
    assert message.get_dataflows()
    assert any(io.get_datasets(path)[0].data is not None for path in folder.rglob("*.csv"))


def strange_words(example: Example, out: Path) -> Iterator[tuple[str, str]]:
    """Yield words that have no place in an example's public files, with the files."""
    for path in [*out.glob("releases/**/*"), *out.glob("files/**/*"), *out.glob("sdmx/**/*")]:
        if path.suffix in PUBLIC and "layouts" not in path.parts:
            yield from ((path.name, match[0]) for match in example.words.finditer(path.read_text(encoding="utf-8")))


def main() -> None:
    """Make the examples that the command names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[each.name for each in EXAMPLES], metavar="NAME")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(".work/examples"))
    arguments = parser.parse_args()
    for example in EXAMPLES:
        if example.name in arguments.names:
            print(example.name)
            seconds = make(example, arguments.records, arguments.out / example.name)
            print("  seconds:", ", ".join(f"{step} {took:.0f}" for step, took in seconds.items()))


if __name__ == "__main__":
    main()
