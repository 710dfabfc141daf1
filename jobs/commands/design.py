"""prdp design: the noise with the least error under limits on losses; reads no microdata."""

import argparse
from pathlib import Path
from typing import Any

from jobs.options import Parser, add_json
from jobs.output import print_json, put
from pipeline.base.errors import PlanError
from prdp.designs import Design, Number, design
from udfs.numbers.exact import bound_text

EXAMPLE = "prdp design --limit 10:0.12 --limit 100:1 --limit 10000:10 --minimise variance --out noise.json"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--limit",
        action="append",
        required=True,
        metavar="X:RHO",
        help="what a record of influence X, and every smaller one, may lose (repeatable)",
    )
    parser.add_argument(
        "--minimise",
        default="variance",
        metavar="ERROR",
        help="what is to be least: variance, mean_absolute_error or interval (default: variance)",
    )
    parser.add_argument("--coverage", default="0.95", metavar="C", help="the coverage of intervals (default: 0.95)")
    parser.add_argument("--step", default="1", metavar="S", help="the step of the measure (default: 1)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write; it must not exist")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the table, then print what it is."""
    limits: dict[Number, Number] = dict(map(_limit, arguments.limit))
    if len(limits) < len(arguments.limit):
        raise PlanError("--limit: an influence stands twice")
    if arguments.out.exists():
        raise PlanError(f"--out {arguments.out}: exists already; name another file")
    found = design(limits, minimise=arguments.minimise, step=arguments.step, coverage=arguments.coverage)
    found.save(arguments.out)
    if arguments.json:
        print_json(found.to_json() | {"file": str(arguments.out)})
    else:
        put("\n".join(_lines(found, arguments.out)))


def _limit(text: str) -> tuple[str, str]:
    influence, colon, rho = text.partition(":")
    if not colon:
        raise PlanError(f"--limit {text}: must be an influence and its rho, such as 10:0.12")
    return influence, rho


def _lines(found: Design, out: Path) -> list[str]:
    facts = found.to_json()
    start = facts["start"]
    lines = [f"table    {out}", "", "    influence   limit      certified loss (rho)"]
    for limit in facts["limits"]:
        certified = bound_text(found.mechanism.mechanism.loss_at(found.exactly(limit["influence"])))
        lines.append(f"    {limit['influence']:<12}{limit['rho']:<11}{certified}")
    shape = ", ".join(f"{name} {start[name]}" for name in ("p", "d", "a", "sigma"))
    return [
        *lines,
        "",
        f"    standard error {facts['variance'] ** 0.5:.6g}, mean absolute error {facts['mean_absolute_error']:.6g}, "
        f"{facts['coverage']} intervals {facts['interval']:.6g} wide",
        f"    {facts['minimise'].replace('_', ' ')}: {facts['ratio']:.4g} times that of the best exponential "
        "polylogarithmic noise",
        f"    within the same limits ({shape})",
        *_least(facts),
        "",
        f"in a plan: mechanism: {{kind: designed, weights: {out.name}}}",
    ]


def _least(facts: dict[str, Any]) -> list[str]:
    bound = facts["lower_bound"]
    if not bound:
        return []
    excess = 100 * (facts[facts["minimise"]] / bound - 1)
    return [f"    at most {excess:.2g} % above the least possible within the limits ({bound:.6g})"]
