"""How long it takes to choose the scales of many tables at once, and how near to the limits the result comes.

python -m benchmarks.allocation [--tables N]
"""

import argparse
import time
from fractions import Fraction

from pipeline.accounting.allocation import allocate
from pipeline.accounting.calibrate import Family
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference
from pipeline.accounting.targets import StandardErrorTarget
from pipeline.accounting.unknowns import Bound, Problem, Unknown
from udfs.records.statistics import Sum

ERROR = StandardErrorTarget(standard_error=Fraction(1), total=Fraction(500))
KINDS: tuple[tuple[str, dict[str, str | int]], ...] = (
    ("gaussian", {}),
    ("laplace", {"policy": "tight"}),
    ("exponential_polylog", {"p": 1, "d": 4, "a": 3, "policy": "tight"}),
    ("generalized_gaussian", {"p": "0.25", "policy": "tight"}),
    ("log", {"a": 100}),
)
LIMITS = ((10, 2), (5_000, 100))  # influence on every table, rho


def main() -> None:
    """Print seconds, the share of each limit that is spent, and seconds a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=20)
    tables = parser.parse_args().tables
    queries, unknowns = [], []
    for i in range(tables):
        kind, fixed = KINDS[i % len(KINDS)]
        family = Family(kind, "sigma", tuple(sorted(fixed.items())), Fraction(1), may_be_narrow=False)
        start = family.at(family.start)
        assert start is not None
        queries.append(QueryPolicy(f"q{i}", Sum(f"m{i}"), start))
        unknowns.append(Unknown(label=f"q{i}", members={i: family}, error=ERROR, weight=Fraction(1 + i % 7)))
    policy = PolicySum(tuple(queries), (frozenset(range(tables)),))
    references = [(Reference.of({f"m{i}": size for i in range(tables)}), Fraction(rho)) for size, rho in LIMITS]
    problem = Problem(policy, [Bound(Limit(at, rho)) for at, rho in references], unknowns)
    before = time.process_time()
    found = allocate(problem)
    seconds = time.process_time() - before
    shares = [bound.share(problem.at(found)) for bound in problem.bounds]
    print(f"{tables} tables: {seconds:.2f} s, {seconds / tables:.3f} s a table; spent {shares}")


if __name__ == "__main__":
    main()
