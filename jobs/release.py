"""`prdp release` on Spark, for spark-submit: spark-submit … jobs/release.py PLAN [the options of prdp release].

In client mode the exit code, standard output and standard error are those of `prdp release`. In cluster mode the driver
runs on a machine of the cluster's choosing and spark-submit may not return its exit code: there a ledger that is a file
is refused, since the machine would begin a new one. The outcome is read from the ledger:
`prdp ledger show RELEASE --json`.
"""

import sys

from jobs.cli import main
from pipeline.engines.spark_session import own_standard_error

if __name__ == "__main__":
    with own_standard_error():
        code = main(["release", "--engine", "spark", *sys.argv[1:]])
    sys.exit(code)
