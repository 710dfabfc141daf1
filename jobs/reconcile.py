"""`prdp reconcile` on Spark, for spark-submit: spark-submit … jobs/reconcile.py RELEASE… --out DIR [its options]."""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main(["reconcile", "--engine", "spark", *sys.argv[1:]]))
