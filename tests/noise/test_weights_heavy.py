"""Far tails of heavy-tailed log-weights are bracketed, whatever the precision asked for."""

from fractions import Fraction

import pytest

from tests.support.families import HEAVY, weights_of
from tests.support.heavy import HeavyNoise, Polylog
from tests.support.lattice import CTX
from udfs.noise.lattice import REACH
from udfs.numbers.exact import context


@pytest.mark.parametrize("noise", HEAVY, ids=str)
@pytest.mark.parametrize("bits", [96, 192, 320])
def test_tails_are_bracketed(noise: HeavyNoise, bits: int) -> None:
    # Far out a tail is tiny: an integral whose error is absolute would be wrong there.
    for k in (1, 7, 300, 10**6, REACH):
        low, high = (CTX.mpf(bound) for bound in weights_of(noise).tail(k, context(bits)))
        exact, known = noise.weight_from(k), CTX.mpf(10) ** -27
        assert low <= exact * (1 + known)
        assert high >= exact * (1 - known)
        first = noise.weight(k)  # the bracket is a term wide
        assert high - low <= first + exact * CTX.ldexp(1 + abs(noise.log_weight(k)), 20 - bits)


@pytest.mark.parametrize("bits", [192, 320])
def test_tails_are_bracketed_where_the_exponents_digits_cancel(bits: int) -> None:
    noise = Polylog(Fraction(2), Fraction(10**50), Fraction(10**50), Fraction(2**55))
    low, high = (CTX.mpf(bound) for bound in weights_of(noise).tail(REACH, context(bits)))
    assert low <= noise.weight_from(REACH) <= high <= low * (1 + CTX.mpf(10) ** -10)
