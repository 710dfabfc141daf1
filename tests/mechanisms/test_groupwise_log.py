"""Group-wise losses of counts on the logarithm: exact divergences beneath them, their shape, and target errors."""

from fractions import Fraction
from itertools import pairwise
from math import log
from random import Random

import numpy as np
import pytest
from scipy import integrate, stats

from tests.support.bits import cell_bits
from tests.support.divergence import renyi
from tests.support.groupwise_analysis import sigma_for_relative_error
from tests.support.guarantee import ORDERS, ROUNDING, centres, named, noise_of
from tests.support.lattice import CTX, real
from tests.support.mechanisms import INTERVAL
from udfs.mechanisms.catalogue import GroupwiseLog
from udfs.mechanisms.transformed_kinds import Log
from udfs.numbers.arrays import LARGEST

ONE = Fraction(1)
COARSE = GroupwiseLog(a=Fraction(2**34), sigma=Fraction("3.5e-10"))  # one record is half a lattice step
CASES = [
    GroupwiseLog(a=Fraction(1), sigma=Fraction("0.1")),
    GroupwiseLog(a=Fraction(5), sigma=Fraction("0.0208889278")),
    GroupwiseLog(a=Fraction(1, 10), sigma=Fraction(1)),
    COARSE,
]
COUNTS = [*range(40), 99, 1000, 12_345, 10**9, 2**40]


def broken(m: GroupwiseLog, counts: list[int], influence: int, told: int = 0) -> list[tuple[int, int]]:
    """(count, neighbour) whose divergence, of some order and direction, exceeds v at the count + `told`."""
    noise, found = noise_of(m), []
    for x in counts:
        v = real(m.group_loss_at(Fraction(x + told), Fraction(influence)))
        for y in (x - influence, x + influence):
            if y >= 0:
                shift = int(np.diff(centres(m, np.array([x, y], dtype=np.int64)))[0])
                if any(shift and renyi(noise, s, o) > real(o) * v * ROUNDING for o in ORDERS for s in (shift, -shift)):
                    found.append((x, y))
    return found


@pytest.mark.parametrize("m", CASES, ids=named)
@pytest.mark.parametrize("influence", [1, 3])
def test_divergences_of_a_groups_neighbours_stay_within_its_loss(m: GroupwiseLog, influence: int) -> None:
    assert broken(m, COUNTS, influence) == []
    if m is not COARSE:
        seen = broken(m, [5, 10, 30], influence, told=1)  # the twin: the loss of a group that is larger by one
        assert seen == [(x, x - influence) for x in (5, 10, 30)]


def test_a_groups_loss_needs_the_rounding_step() -> None:
    noise, found = noise_of(COARSE), 0
    for x in range(200):
        shift = int(np.diff(centres(COARSE, np.array([x, x + 1])))[0])
        bare = (log(1 + 1 / (x + float(COARSE.a))) * (1 + 1e-12) / float(COARSE.sigma)) ** 2 / 2
        assert renyi(noise, shift, Fraction(2)) <= 2 * real(COARSE.group_loss_at(Fraction(x + 1))) * ROUNDING
        found += renyi(noise, shift, Fraction(2)) > 2 * bare
    assert found > 50


@pytest.mark.parametrize("m", CASES, ids=named)
def test_larger_groups_lose_less_and_none_more_than_the_policy(m: GroupwiseLog) -> None:
    losses = [m.group_loss_at(Fraction(x)) for x in COUNTS]
    assert losses[0] == losses[1] == m.loss_at(ONE)
    assert all(a >= b for a, b in pairwise(losses))
    assert losses[-1] < losses[0]
    for x, loss in zip(COUNTS[1:], losses[1:], strict=True):
        rise = CTX.log(1 + 1 / (x - 1 + real(m.a))) + real(m.lattice_step)
        exactly = (rise / real(m.sigma)) ** 2 / 2
        assert exactly * (1 - CTX.mpf(10) ** -100) <= real(loss) <= exactly * (1 + CTX.mpf(10) ** -19)
    for influence in (Fraction(3), Fraction(50)):  # several records of one owner
        at = [m.group_loss_at(Fraction(x), influence) for x in COUNTS]
        assert max(at) == at[0] == m.loss_at(influence)
        assert at == sorted(at, reverse=True)
    assert m.group_loss_at(Fraction(7), Fraction(0)) == 0
    for wrong in ((Fraction(-1), ONE), (ONE, Fraction(-1))):
        with pytest.raises(ValueError, match="at least 0"):
            m.group_loss_at(*wrong)


def test_it_releases_and_promises_what_the_log_mechanism_does() -> None:
    for m in CASES:
        twin = Log(a=m.a, sigma=m.sigma)
        totals = np.array([0, 1, 5, 10**6, LARGEST], dtype=np.int64)
        ours, theirs = (x.release(totals, cell_bits(5), INTERVAL) for x in (m, twin))
        for name in ("value", "lower", "upper", "standard_error"):
            assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()
        assert [m.loss_at(Fraction(n)) for n in range(9)] == [twin.loss_at(Fraction(n)) for n in range(9)]
        assert (m.variance(9.0), m.interval_around(9.0, INTERVAL)) == (
            twin.variance(9.0),
            twin.interval_around(9.0, INTERVAL),
        )


@pytest.mark.parametrize(("sigma", "a"), [("0.02", 5), ("0.5", 1), ("2", 3)])
def test_the_mean_absolute_error_is_the_integral(sigma: str, a: int) -> None:
    m, s = GroupwiseLog(a=Fraction(a), sigma=Fraction(sigma)), float(sigma)

    def part(z: float) -> float:
        return abs(float(np.exp(s * z - s**2 / 2)) - 1) * float(stats.norm.pdf(z))

    kink = s / 2
    integral = sum(integrate.quad(part, *ends, epsabs=0, epsrel=1e-11)[0] for ends in ((-12, kink), (kink, 16)))
    for x in (0.0, 1.0, 1000.0):
        assert m.mean_absolute_error(x) == pytest.approx(integral * (x + a), rel=1e-8)
        assert m.mean_absolute_error(x) == pytest.approx(2 * (2 * stats.norm.cdf(s / 2) - 1) * (x + a), rel=1e-12)


@pytest.mark.parametrize("r", ["1e-6", "0.01", "0.1", "0.37", "1"])
@pytest.mark.parametrize("a", ["0.001", "1", "5", "1000"])
def test_a_target_error_is_kept_at_every_count_and_hardly_undercut(r: str, a: str) -> None:
    target, offset = Fraction(r), Fraction(a)
    sigma = sigma_for_relative_error(target, offset)
    m = GroupwiseLog(a=offset, sigma=sigma)
    for x in (1.0, 2.0, 17.0, 1e6):
        assert m.mean_absolute_error(x) < float(r) * x
    assert m.mean_absolute_error(1.0) > float(r) * (1 - 3e-6)
    assert float(sigma) < 2 * stats.norm.ppf(0.5 + float(target / (4 * (1 + offset)))) * (1 + 1e-9)
    wider = GroupwiseLog(a=offset, sigma=sigma * Fraction(10_001, 10_000))  # the twin
    assert wider.mean_absolute_error(1.0) > float(r)


def test_a_target_error_fits_in_a_plan() -> None:
    random = Random(3)
    for _ in range(50):
        sigma = sigma_for_relative_error(Fraction(f"{random.uniform(1e-6, 1):.6f}"), Fraction(random.randint(1, 1000)))
        assert GroupwiseLog(a=ONE, sigma=sigma).describe()["sigma"] == float(sigma)
    for r, a in (("0", "1"), ("1.1", "1"), ("0.1", "0")):
        with pytest.raises(ValueError, match="target"):
            sigma_for_relative_error(Fraction(r), Fraction(a))
