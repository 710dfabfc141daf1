"""The root mechanism rounds as exact integers do, whichever path decides; for k = 1 nothing is rounded."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tests.support.bits import Injected, words_that_draw
from tests.support.mechanisms import root_of
from udfs.mechanisms.transformed_kinds import Root
from udfs.numbers.arrays import LARGEST

INTERVAL = Fraction(19, 20)


def belongs(m: Root, total: int, n: int) -> bool:
    """Whether n = ⌊(q + a)^{1/k}/λ + ½⌋: (2n − 1)^k·(λ/2)^k ≤ q + a < (2n + 1)^k·(λ/2)^k, in exact numbers."""
    x, half, k = total * m.step + m.a, m.lattice_step / 2, int(m.k)
    return (n == 0 or ((2 * n - 1) * half) ** k <= x) and x < ((2 * n + 1) * half) ** k


def hard_totals(m: Root) -> list[int]:
    """Random totals of all sizes, perfect powers, and totals next to where rounding changes."""
    random, k = Random(17), int(m.k)
    totals = [
        0,
        1,
        2,
        3,
        LARGEST - 1,
        LARGEST,
        *(random.randrange(1 << bits) for bits in range(2, 63) for _ in range(6)),
    ]
    totals += [b**k + by for b in range(2, 40) for by in (-1, 0, 1) if b**k < 1 << 62]
    for total in totals[6:60]:
        n = int(m.on_lattice(np.array([total], dtype=np.int64))[0])
        edge = (((2 * n + 1) * m.lattice_step / 2) ** k - m.a) / m.step
        totals += [int(edge) + by for by in (-1, 0, 1) if 0 <= int(edge) + by <= LARGEST]
    return [total for total in totals if 0 <= total <= LARGEST]


PLACES = [
    (2, "0", "2", "1"),
    (2, "3.5", "0.01", "0.01"),
    (3, "0", "0.5", "1"),
    (4, "0", "2", "1"),
    (4, "1", "1e-6", "0.25"),
]
PLACES += [(7, "1e-6", "0.2", "1"), (50, "2", "0.01", "1"), (100, "0", "0.001", "1e-20"), (2, "1e18", "1e9", "1e10")]


@pytest.mark.parametrize(("k", "a", "sigma", "step"), PLACES)
def test_rounding_is_that_of_exact_numbers(k: int, a: str, sigma: str, step: str) -> None:
    m = root_of(k, a, sigma, step)
    totals = hard_totals(m)
    found = m.on_lattice(np.array(totals, dtype=np.int64)).tolist()
    assert all(belongs(m, total, n) for total, n in zip(totals, found, strict=True))
    assert [m.exactly_on_lattice(total) for total in totals] == found
    assert all(x <= y for (_, x), (_, y) in pairwise(sorted(zip(totals, found, strict=True))))
    assert not belongs(m, totals[-1], found[-1] + 1)
    assert not belongs(m, totals[-1], found[-1] - 1)


def test_ties_are_decided_upward_and_by_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    m = root_of(2, "0", str(2**30), "0.25")  # λ = 1: √(q/4) = n + ½ at q = (2n + 1)²
    assert m.lattice_step == 1
    asked: list[int] = []
    exactly = Root.exactly_on_lattice

    def counted(self: Root, total: int) -> int:
        asked.append(total)
        return exactly(self, total)

    monkeypatch.setattr(Root, "exactly_on_lattice", counted)
    ties = [(2 * n + 1) ** 2 for n in range(50)]
    assert m.on_lattice(np.array(ties, dtype=np.int64)).tolist() == [n + 1 for n in range(50)]
    assert asked == ties
    assert m.on_lattice(np.array([tie - 1 for tie in ties], dtype=np.int64)).tolist() == list(range(50))


def test_plain_doubles_would_not_do() -> None:
    m = root_of(2, "0", "0.01")
    totals = np.array(hard_totals(m), dtype=np.int64)
    careless = np.floor(np.sqrt(totals.astype(np.float64)) / float(m.lattice_step) + 0.5).astype(np.int64)
    assert not all(belongs(m, int(q), int(n)) for q, n in zip(totals, careless, strict=True))


@pytest.mark.parametrize(("k", "a", "sigma", "step"), PLACES)
def test_the_lattice_step(k: int, a: str, sigma: str, step: str) -> None:
    m = root_of(k, a, sigma, step)
    lam = m.lattice_step
    assert lam.numerator == 1 or lam.denominator == 1
    assert (lam.numerator * lam.denominator).bit_count() == 1  # a power of two
    assert m.sigma / 2**31 < lam
    assert int(m.on_lattice(np.array([LARGEST]))[0]) < 2**61
    assert lam <= max(m.sigma / 2**30, Fraction(2) ** -58 * Fraction((float(LARGEST * m.step + m.a)) ** (1 / k)))


def test_the_first_root_is_the_identity() -> None:
    totals = np.array([0, 1, 17, LARGEST], dtype=np.int64)
    for a in ("0", "5"):
        m = root_of(1, a, "3", "0.25")
        assert m.lattice_step == m.step
        assert m.on_lattice(totals) is totals
        assert m.loss_at(Fraction(6)) == 2  # Δ²/(2σ²), no rounding
        released = m.release(
            totals,
            Injected([[words_that_draw(m.lattice_noise.table, k) for k in (0, 3, -2, 0)]], lambda *_: 0),
            INTERVAL,
        )
        assert released.value.tolist() == [0, 1, 3.75, LARGEST / 4]
