"""Child process: tables of a Hive metastore, in formats that Spark reads itself and that Hive alone reads.

Argument: a new folder. It prints, for each table, what the product says of it.
"""

import os
import sys
from pathlib import Path

from pipeline.base.errors import PlanError
from pipeline.engines import spark_session
from tests.support.spark import local_engine

FORMATS = {"converted": "PARQUET", "text": "TEXTFILE", "sequence": "SEQUENCEFILE"}


def main(folder: Path) -> None:
    os.chdir(folder)  # the metastore's own database logs there
    metastore = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }
    spark_session.EMBEDDED = {**spark_session.EMBEDDED, **metastore}
    with local_engine() as engine:
        for name, stored in FORMATS.items():
            table = f"CREATE TABLE {name} (employment bigint) PARTITIONED BY (county string) STORED AS {stored}"
            engine.session.sql(table)
            engine.session.sql(f"INSERT INTO {name} PARTITION (county='01001') VALUES (1), (2)")
            try:
                engine.table(name)
                print(name, "is read")
            except PlanError as error:
                print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
