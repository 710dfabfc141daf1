"""`prdp diagnose` on Spark, for spark-submit: spark-submit … jobs/diagnose.py PLAN --out FOLDER [its other options].

What it makes is confidential, as are the logs of the executors.
"""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main(["diagnose", "--engine", "spark", *sys.argv[1:]]))
