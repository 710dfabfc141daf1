"""`prdp release` on Spark, for spark-submit: spark-submit … jobs/release.py PLAN [the options of prdp release].

The exit code is that of `prdp release` where the driver runs in this process (client mode); otherwise the ledger tells
the outcome (`prdp ledger show`).
"""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main(["release", "--engine", "spark", *sys.argv[1:]]))
