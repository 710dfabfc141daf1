"""The table of docs/tight.md: as it is computed, and by formulas and sums that owe nothing to the policies."""

import pytest

from benchmarks.tight import EXAMPLES, INFLUENCES, MARKS, PAGE, POLICIES, example, gains
from tests.support.lattice import CTX

DIGITS = 5.1e-4  # relative, of four digits
TABLE = MARKS.search(PAGE.read_text(encoding="utf-8"))
FINE = "tight, `lattice: fine`"
NAMES = {str(spec["kind"]): name for name, spec in EXAMPLES.items()}


def losses(kind: str, policy: str) -> dict[int, float]:
    """Return the losses of a row of the page."""
    assert TABLE is not None
    rows = [line.strip("| \n").split(" | ") for line in TABLE[0].splitlines() if line.startswith("|")][2:]
    place = [*NAMES].index(kind) * len(POLICIES) + [*POLICIES].index(policy)
    return dict(zip(INFLUENCES, map(float, rows[place][-len(INFLUENCES) :]), strict=True))


def test_the_table_is_the_one_that_is_computed() -> None:
    assert TABLE is not None
    assert TABLE[0] == TABLE[1] + gains() + TABLE[2]


@pytest.mark.parametrize("kind", NAMES)
def test_the_papers_rows_are_its_formula(kind: str) -> None:
    pure = {
        "laplace": lambda x: CTX.mpf(x) / 20,
        "generalized_gaussian": lambda x: CTX.sqrt(CTX.mpf(x) / 5),
        "exponential_polylog": lambda x: CTX.mpf("1.5") * (CTX.log(CTX.mpf(x) / 20 + CTX.e) ** 2 - 1),
    }[kind]
    expected = [float(CTX.tanh(pure(x) / 2) * pure(x)) for x in INFLUENCES]
    assert list(losses(kind, "paper").values()) == pytest.approx(expected, rel=DIGITS)
    assert list(losses(kind, "tight").values()) != pytest.approx(expected, rel=DIGITS)  # the twin: the wrong row


@pytest.mark.parametrize("policy", ["tight", FINE])
def test_laplace_noise_loses_its_closed_form(policy: str) -> None:
    s = CTX.mpf(1) / 20 / example(NAMES["laplace"], policy).lattice_noise.fineness
    for influence, loss in losses("laplace", policy).items():
        p = CTX.mpf(influence) / 20
        assert loss == pytest.approx(float(p - s / CTX.sinh(s) * (1 - CTX.exp(-p))), rel=DIGITS)
