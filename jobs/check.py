"""`prdp check` on Spark, for spark-submit: spark-submit … jobs/check.py PLAN [the options of prdp check].

What it finds is confidential, as are the logs of the executors.
"""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main(["check", "--engine", "spark", *sys.argv[1:]]))
