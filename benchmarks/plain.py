"""What prdp is measured beside: the same sums by other programs, each a process of its own.

    python -m benchmarks.plain duckdb|polars|dask|spark|twelve|rolled_up|whole_codes MICRODATA OUT DIGITS

Each adds up employment by industry (that many digits of its code) and county, and writes the sums to Parquet; `twelve`,
`rolled_up` and `whole_codes` write the twelve tables of the suite publication. No cells without records, no noise, no
ledger, no pages; no contract of records; on Spark nothing encrypted.
"""

import os
import sys
from types import ModuleType

LEVELS = ((3, 5), (2, 5), (3, 2), (2, 2))  # digits of industries, and of areas: counties and states
MEASURES = ("sum(employment)", "sum(payroll)", "count(*)")


def duckdb(data: str, out: str, digits: int) -> None:
    """Group by in SQL."""
    import duckdb

    keys = f"substr(naics, 1, {digits}) AS naics, county"
    sums = f"SELECT {keys}, sum(employment) AS value FROM read_parquet('{data}/*.parquet') GROUP BY ALL ORDER BY ALL"
    duckdb.sql(f"COPY ({sums}) TO '{out}' (FORMAT parquet)")


def twelve(data: str, out: str, digits: int) -> None:
    """Group by in SQL once a table."""
    import duckdb

    for industry, area in LEVELS:
        for number, measure in enumerate(MEASURES):
            keys = f"substr(naics, 1, {industry}) AS naics, substr(county, 1, {area}) AS area"
            sums = f"SELECT {keys}, {measure} AS value FROM read_parquet('{data}/*.parquet') GROUP BY ALL ORDER BY ALL"
            _write(duckdb, sums, out, f"{number}{industry}{area}")


def rolled_up(data: str, out: str, digits: int) -> None:
    """Group by in SQL once, by the finest keys, and make all tables of that, as an expert would."""
    _once(data, out, f"substr(naics, 1, {LEVELS[0][0]}) AS naics, county AS area")


def whole_codes(data: str, out: str, digits: int) -> None:
    """The same by the codes as records have them: more groups, which also serve tables that are not planned yet."""
    _once(data, out, "naics, county AS area")


def _once(data: str, out: str, keys: str) -> None:
    import duckdb

    sums = ", ".join(f"{measure} AS value{number}" for number, measure in enumerate(MEASURES))
    duckdb.sql(f"CREATE TEMP TABLE finest AS SELECT {keys}, {sums} FROM read_parquet('{data}/*.parquet') GROUP BY ALL")
    for industry, area in LEVELS:
        keys = f"substr(naics, 1, {industry}) AS naics, substr(area, 1, {area}) AS area"
        for number in range(len(MEASURES)):
            sums = f"SELECT {keys}, sum(value{number}) AS value FROM finest GROUP BY ALL ORDER BY ALL"
            _write(duckdb, sums, out, f"{number}{industry}{area}")


def _write(duckdb: ModuleType, sums: str, out: str, name: str) -> None:
    os.makedirs(out, exist_ok=True)
    duckdb.sql(f"COPY ({sums}) TO '{out}/{name}.parquet' (FORMAT parquet)")


def polars(data: str, out: str, digits: int) -> None:
    """Group by lazily, on the streaming engine."""
    import polars as pl

    keys = [pl.col("naics").str.slice(0, digits), "county"]
    sums = pl.scan_parquet(f"{data}/*.parquet").group_by(keys).agg(pl.col("employment").sum().alias("value"))
    sums.sort("naics", "county").collect(engine="streaming").write_parquet(out)


def dask(data: str, out: str, digits: int) -> None:
    """Group by on Dask's DataFrame, on threads."""
    import dask.dataframe as dd

    rows = dd.read_parquet(data, columns=["naics", "county", "employment"])
    rows["naics"] = rows["naics"].str.slice(0, digits)
    sums = rows.groupby(["naics", "county"])["employment"].sum().compute()
    sums.rename("value").reset_index().sort_values(["naics", "county"]).to_parquet(out)


def spark(data: str, out: str, digits: int) -> None:
    """Group by in a local session on all cores."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from pipeline.engines.spark_session import java_home, private_folder

    os.environ |= {"JAVA_HOME": str(java_home(os.environ, private_folder())), "PYSPARK_PYTHON": sys.executable}
    settings = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    session = SparkSession.builder.config(map=settings | {"spark.ui.showConsoleProgress": "false"}).getOrCreate()
    keys = [f.substring("naics", 1, digits).alias("naics"), "county"]
    session.read.parquet(data).groupBy(*keys).agg(f.sum("employment").alias("value")).write.parquet(out)
    session.stop()


PROGRAMS = {program.__name__: program for program in (duckdb, polars, dask, spark, twelve, rolled_up, whole_codes)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
