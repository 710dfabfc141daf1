"""What spark-submit makes of a driver: where it runs, and where its standard error goes."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

from pipeline.engines.spark_session import Get, submitted


def in_cluster_mode() -> bool:
    """Whether spark-submit has this driver run on a machine of the cluster's choosing."""
    if not submitted():
        return False
    SparkContext._ensure_initialized()
    found = SparkConf()
    return chosen_by_cluster(lambda key: found.get(key, None))


def chosen_by_cluster(get: Get) -> bool:
    """Whether a configuration is one of cluster mode; on Kubernetes the driver itself is told client mode."""
    return get("spark.submit.deployMode") == "cluster" or get("spark.kubernetes.submitInDriver") == "true"


@contextmanager
def own_standard_error() -> Iterator[None]:
    """Have what is written to sys.stderr reach spark-submit's standard error, which joins a driver's two outputs."""
    if not submitted():
        yield
        return
    with redirect_stderr(_JavaError()):
        yield


class _JavaError(io.TextIOBase):
    """The standard error of spark-submit, which is the Java that this process is a child of."""

    def write(self, text: str) -> int:
        """Write text there; where that Java is gone, to this process's own standard error."""
        try:
            SparkContext._ensure_initialized()
            SparkContext._jvm.System.err.print(text)  # type: ignore[union-attr]
        except (Py4JError, OSError):
            (sys.__stderr__ or sys.stdout).write(text)
        return len(text)
