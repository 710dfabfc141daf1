"""`prdp check`, `diagnose` and `reconcile` on Spark: spark-submit … jobs/spark.py COMMAND [its options].

What check and diagnose find is confidential, as are the logs of the executors.
"""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main([sys.argv[1], "--engine", "spark", *sys.argv[2:]]))
