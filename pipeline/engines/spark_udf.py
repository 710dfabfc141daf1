"""A mechanism as a pandas UDF, for experts who release a DataFrame of public cells and totals of their own.

It gives the bytes that a release gives, and nothing else of a release: no ledger, no plan, no check of the cells.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from pipeline.base.build import code_digest
from pipeline.base.errors import PlanError
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.spark_driver import driver_of
from pipeline.engines.spark_failures import guarded
from pipeline.engines.tasks import require_same_code
from pipeline.plan.model import VALUES
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.release import rehearse, release_frame
from udfs.noise.keystream import MAX_QUERIES, SecretKey
from udfs.numbers.wide import LARGEST


class WithMechanism(Protocol):
    """A mechanism of `prdp.mechanisms`."""

    @property
    def mechanism(self) -> Mechanism:
        """The exact object underneath."""


class NoiseKey:
    """A key for the noise of one release, of the operating system's entropy; it lives in this process alone.

    It is never made from bytes, and can be neither copied nor pickled: it travels to workers within the UDFs that are
    made with it. Each query number is used once, since two tables with the same noise differ by their totals alone.
    """

    __slots__ = ("_key", "_lock", "_queries")

    def __init__(self) -> None:
        self._key = SecretKey.fresh()
        self._queries: set[int] = set()
        self._lock = threading.Lock()

    def for_query(self, query: int) -> SecretKey:
        """Return the key for a query that had none yet; raises PlanError otherwise."""
        if not isinstance(query, int | np.integer):
            raise PlanError("query: a query number is a whole number")
        if not 0 <= query < MAX_QUERIES:
            raise PlanError(f"query {query}: a query number lies between 0 and {MAX_QUERIES - 1}")
        with self._lock:
            if query in self._queries:
                raise PlanError(f"query {query}: this key has noise for it already; give another number or a fresh key")
            self._queries.add(query)
        return self._key

    def __repr__(self) -> str:
        return "NoiseKey(redacted)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NoiseKey can be neither pickled nor copied")


@dataclass(frozen=True, eq=False, repr=False)
class ReleaseCells:
    """Releases a batch of cells on a worker; its failures show no value.

    It is made on the driver, where the mechanism's tables are built: workers with other processors would build others.
    """

    code: str
    mechanism: Mechanism
    key: SecretKey
    query: int
    interval: Fraction
    integer: bool

    def __post_init__(self) -> None:
        rehearse(self.mechanism, self.interval)

    def __call__(self, cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        """Return the columns `value`, `lower`, `upper`, `standard_error` of a batch."""
        return guarded(lambda: self._released(cells, totals))

    def _released(self, cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        require_same_code(self.code)
        if cells.dtype != np.int64 or totals.dtype != np.int64:  # missing values make others
            raise TaskFailed("cells and totals must be of type long, without missing values")
        if cells.lt(0).any() or cells.duplicated().any():
            raise TaskFailed("cells must be numbers from 0, each once")
        if totals.lt(0 if self.mechanism.needs_nonnegative else -LARGEST).any():
            raise TaskFailed("a total lies below what the mechanism allows: 0, or −(2⁶³ − 1)")
        return release_frame(
            pd.DataFrame({"cell": cells, "total": totals}),
            (self.mechanism,),
            key=self.key,
            query=self.query,
            interval=self.interval,
            integer=self.integer,
        )[list(VALUES)]


def mechanism_udf(  # noqa: PLR0913 — the keystream's address beside the mechanism
    session: SparkSession,
    mechanism: Mechanism | WithMechanism,
    key: NoiseKey,
    *,
    query: int = 0,
    interval: float = 0.95,
    integer: bool = True,
) -> Callable[..., Any]:
    """Return a pandas UDF of two columns, a cell's number and its exact total, that releases the total.

    Guarantee: what it returns for a cell satisfies the mechanism's, if each of these is true. **No ledger accounts for
    it**: who calls it adds the loss up with every other release of the same records, and sees to it that

    - the rows are the public cells, all of them, whatever the records hold: a cell without records has the total 0;
    - the cells are disjoint, and the numbers of cells, from 0, depend on nothing confidential, each on one row;
    - totals are exact sums of records in whole steps of the mechanism, of magnitude at most 2⁶³ − 1, of records that
      the mechanism allows (`needs_nonnegative`: none below 0; `counts_only`: counts of records);
    - totals are materialised before the UDF is applied: evaluated anew, it draws the same noise, and the difference of
      two totals with the same noise is the difference of the records (so it is applied once; select its column's fields
      to use them again);
    - nothing but the four fields leaves the cluster, and the totals lie nowhere in the clear.

    Args:
        session: A session whose configuration encrypts what it stores and sends (docs/architecture.md, rule 4).
        mechanism: One of `prdp.mechanisms`, or the exact object underneath.
        key: `NoiseKey()`, of this call's release alone.
        query: The query's number; with the same key each number is used once.
        interval: The coverage of `lower` … `upper`, above 0 and below 1.
        integer: Whether the measure is an integer: values of additive mechanisms are then whole numbers.

    Returns:
        A UDF of (cell: long, total: long) whose value is a struct of `value`, `lower`, `upper` (long, or double in the
        measure's unit) and `standard_error` (double, in the measure's unit). The noise of a cell depends on key, query
        and cell alone, not on partitions. Applied a second time, the UDF raises PlanError.

    Raises:
        PlanError: The session is not safe to hold a key, the query's number is used up, or an argument is wrong.

    Examples:
        >>> release = mechanism_udf(spark, Gaussian(sigma=10), NoiseKey())       # doctest: +SKIP
        >>> cells.select("cell", release("cell", "total").alias("released"))     # doctest: +SKIP
    """
    if not 0 < interval < 1:
        raise PlanError(f"interval {interval}: it must lie above 0 and below 1")
    exact = mechanism if isinstance(mechanism, Mechanism) else mechanism.mechanism
    if integer and exact.step != 1:
        raise PlanError(f"step {exact.step}: totals of an integer measure are counted in steps of 1")
    driver_of(session).require_safe()
    number = "long" if integer and exact.additive else "double"
    release = ReleaseCells(code_digest(), exact, key.for_query(query), query, Fraction(str(interval)), integer)

    def released(cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        return release(cells, totals)

    fields = ", ".join(f"{name} {number}" for name in VALUES[:-1])
    udf: Callable[..., Any] = pandas_udf(released, f"{fields}, {VALUES[-1]} double")  # type: ignore[call-overload]
    return _once(udf)


def _once(udf: Callable[..., Any]) -> Callable[..., Any]:
    """Return a UDF that can be applied once: to other totals it would add the same noise."""
    unused = threading.Lock()

    def applied(cell: Any, total: Any) -> Any:
        if not unused.acquire(blocking=False):
            raise PlanError("this UDF was applied already, and has no other noise: make one with another query number")
        return udf(cell, total)

    return applied
