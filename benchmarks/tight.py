"""What tight policies gain: writes the table of docs/tight.md. `python -m benchmarks.kernels` times them."""

import re
from fractions import Fraction
from pathlib import Path

from pipeline.base.plain import number
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build

PAGE = Path(__file__).parents[1] / "docs" / "tight.md"
MARKS = re.compile(r"(<!-- made by benchmarks.tight -->\n).*?(<!-- end -->)", re.DOTALL)
INFLUENCES = (1, 2, 10, 50, 200, 1000, 5000)
EXAMPLES = {
    "Laplace, σ = 20": {"kind": "laplace", "sigma": 20},
    "generalized Gaussian, p = ½, σ = 5": {"kind": "generalized_gaussian", "p": "0.5", "sigma": 5},
    "exponential polylog, p = 2, d = 1.5, a = e, σ = 20": {
        "kind": "exponential_polylog",
        "p": 2,
        "d": "1.5",
        "a": "2.718281828459046",
        "sigma": 20,
    },
}
POLICIES = {
    "paper": {"policy": "paper"},
    "tight": {"policy": "tight"},
    "tight, `lattice: fine`": {"policy": "tight", "lattice": "fine"},
}


def main() -> None:
    """Write the table."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda found: found[1] + gains() + found[2], page), encoding="utf-8")


def example(name: str, policy: str) -> Mechanism:
    """Return one of EXAMPLES under one of POLICIES, on whole steps."""
    return build(EXAMPLES[name] | POLICIES[policy], Fraction(1))


def gains() -> str:
    """Return losses of some influences under each policy, a row for each example and policy."""
    rows = [["noise", "policy", *(f"{influence:,}" for influence in INFLUENCES)], ["---"] * 2 + ["---:"] * 7]
    for name in EXAMPLES:
        for policy in POLICIES:
            losses = [example(name, policy).loss_at(Fraction(influence)) for influence in INFLUENCES]
            rows.append([name if policy == "paper" else "", policy, *(number(float(loss)) for loss in losses)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
