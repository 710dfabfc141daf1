"""The sampler's tables, and every branch of one try, against exact arithmetic."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise, product
from math import log2
from random import Random
from typing import ClassVar

import numpy as np
import pytest

from tests.support.bits import (
    ExactTries,
    Injected,
    Words,
    acceptance,
    bucket_of,
    first_word,
    no_parts,
    word_of,
    words_that_draw,
)
from tests.support.families import HEAVY, three, weights_of
from tests.support.lattice import CTX, LatticeNoise, Noise, real
from udfs.noise.heavy_weights import PolylogWeights
from udfs.noise.lattice import DIGITS, REACH, WORD, LatticeTable, _Fast, build_table, decide, draw_noise

SCALES = [  # three for every run, then those of the drill
    *("1/10", "37/10", str(10**18), "3/10", "1/3", "1", "4", "100", "16384", str(2**30), "7000000001/7"),
    *(str(2**40), str(2**62), str(10**25)),
]
LIGHT = [Noise(power, Fraction(scale)) for power, scale in product((1, 2), SCALES)]
FAMILIES: list[LatticeNoise] = [*LIGHT, *HEAVY]
CHOSEN = (Fraction(1, 10), Fraction(37, 10), 2**30, 10**18)
SOME: list[LatticeNoise] = [*(noise for noise in LIGHT if noise.scale in CHOSEN), HEAVY[1], HEAVY[6]]


def named(noise: LatticeNoise) -> str:
    return f"{ {1: 'laplace', 2: 'gaussian'}[noise.power] } {noise.scale}" if isinstance(noise, Noise) else str(noise)


@cache
def table_of(noise: LatticeNoise) -> LatticeTable:
    return build_table(weights_of(noise))


def places(table: LatticeTable, random: Random) -> list[int]:
    """The first distances, the ends of every bucket, and some at every order of magnitude."""
    ends = [k for s, n in zip(table.starts[:-1], table.lengths[:-1], strict=True) for k in (s, s + n - 1)]
    far = [random.randrange(1 << bits) for bits in range(2, 65) for _ in range(4)]
    return [*range(300), *ends, *(k for k in far if k < REACH)]


def complaints(table: LatticeTable, noise: LatticeNoise, ks: Iterable[int]) -> list[str]:
    """How the table's integers fail to give each outcome k of a try the probability F·exp(w(k))/2⁶⁴."""
    rows = list(zip(table.starts, table.lengths, table.masses, strict=True))
    found = []
    if not (sum(table.masses) < WORD and min(table.masses) >= 1):
        found.append("masses")
    if not all(n == 1 << n.bit_length() - 1 for n in table.lengths):
        found.append("a length is no power of two")
    if table.starts[0] != 0 or rows[-1][:2] != (REACH, 1) or any(a[0] + a[1] != b[0] for a, b in pairwise(rows)):
        found.append("the buckets do not cover the distances once each")
    if any(acceptance(table, noise, b, k) > 1 for b, k in enumerate(table.starts)):  # w falls: the start is highest
        found.append("an acceptance is above 1")
    for k in ks:
        bucket = bucket_of(table, k)
        low, high = table.acceptance(bucket, k, 192)
        per_place = Fraction(table.masses[bucket], WORD * table.lengths[bucket])
        exact = real(table.scale) / WORD * noise.weight(k)
        near = abs(real(low * per_place) - exact) < CTX.ldexp(exact, -100)
        out_of_sight = high < Fraction(1, 1 << 700) and real(low * per_place) <= exact <= real(high * per_place)
        if not (near or out_of_sight):
            found.append(f"the probability of {k}")
    return found


@pytest.mark.parametrize("noise", three(FAMILIES), ids=named)
def test_the_integers_of_a_table_give_every_outcome_its_exact_probability(noise: LatticeNoise) -> None:
    table = table_of(noise)
    assert complaints(table, noise, places(table, Random(1))) == []
    for bits in (64, 128, 300):
        low, high = table.acceptance(len(table.masses) - 1, REACH, bits)
        assert low <= acceptance(table, noise, len(table.masses) - 1, REACH) <= high


def changed(table: LatticeTable, row: int, by: int) -> tuple[int, ...]:
    return (*table.masses[:row], table.masses[row] + by, *table.masses[row + 1 :])


def true_masses(table: LatticeTable, noise: LatticeNoise) -> tuple[int, ...]:
    def mass(start: int, length: int) -> int:
        return max(1, int(real(table.scale) * sum(noise.weight(k) for k in range(start, start + length))))

    near = [mass(s, n) for s, n in zip(table.starts[:20], table.lengths[:20], strict=True)]
    return (*near, *table.masses[20:])


def test_broken_tables_are_rejected_by_the_same_check() -> None:
    noise = Noise(2, Fraction(37, 10))
    table = table_of(noise)
    ks = range(50)
    assert complaints(table, noise, ks) == []
    # A larger mass stays exact: what it adds is rejected. A smaller one cannot give its outcomes their probability.
    assert complaints(replace(table, masses=changed(table, 3, 1)), noise, ks) == []
    for row in (0, 3, 10):
        assert complaints(replace(table, masses=changed(table, row, -3)), noise, ks) == ["an acceptance is above 1"]
    assert "an acceptance is above 1" in complaints(replace(table, masses=true_masses(table, noise)), noise, ks)
    gap = replace(table, starts=(*table.starts[:5], table.starts[5] + 1, *table.starts[6:]))
    assert "the buckets do not cover the distances once each" in complaints(gap, noise, ks)
    assert "the probability of 4" in complaints(table, Noise(2, Fraction(370001, 100000)), ks)
    with pytest.raises(ValueError, match="below 2⁶⁴"):
        replace(table, masses=changed(table, 0, WORD - sum(table.masses)))


def hashed(row: int) -> Callable[[int], int]:
    """Further digits of a row, the same whoever asks."""
    return lambda part: Random(row * 1000 + part).getrandbits(128)


def compare(fast: _Fast, noise: LatticeNoise, tries: list[Words]) -> int:
    """How many of the tries the sampler decides differently from exact arithmetic."""
    exact = ExactTries(fast.table, noise)
    bits = Injected([tries], lambda row, _draw, part: hashed(row)(part))
    k, negative, accepted = fast.attempt(bits, np.arange(len(tries)), 0)
    found = [(int(d), bool(s)) if ok else None for d, s, ok in zip(k, negative, accepted, strict=True)]
    return sum(
        outcome != exact.outcome(words, hashed(i)) for i, (outcome, words) in enumerate(zip(found, tries, strict=True))
    )


def edge_tries(table: LatticeTable, noise: LatticeNoise) -> list[Words]:
    """Both ends of every bucket's mass, its first and last place, acceptance bits clear and close to the threshold."""
    tries: list[Words] = [(sum(table.masses), 0, 0, 0), (WORD - 1, WORD - 1, 0, 1)]
    for bucket, (start, length, mass) in enumerate(zip(table.starts, table.lengths, table.masses, strict=True)):
        for last in (False, True):
            p = acceptance(table, noise, bucket, start + (length - 1) * last)
            edge = int(p * (1 << DIGITS))
            for digits in (0, edge - 200, edge - 1, edge, edge + 1, edge + 200, (1 << DIGITS) - 1):
                word = first_word(table, bucket) + (mass - 1) * last
                tries.append((word, (WORD - 1) * last, word_of(digits), (bucket + last) & 1))
    return tries


def close_tries(table: LatticeTable, noise: LatticeNoise, size: int, random: Random) -> list[Words]:
    """Random buckets and places, acceptance bits within three last bits of the threshold."""
    tries = []
    for _ in range(size):
        word, place = random.randrange(sum(table.masses)), random.getrandbits(64)
        bucket = next(b for b, end in enumerate(accumulate(table.masses)) if word < end)
        p = acceptance(table, noise, bucket, table.starts[bucket] + place % table.lengths[bucket])
        tries.append((word, place, word_of(int(p * (1 << DIGITS)) + random.randint(-3, 3)), random.getrandbits(64)))
    return tries


@pytest.mark.parametrize("noise", SOME, ids=named)
def test_no_try_is_decided_differently_from_exact_arithmetic(noise: LatticeNoise) -> None:
    table, random = table_of(noise), Random(2)
    fast = _Fast(table)
    assert compare(fast, noise, edge_tries(table, noise)) == 0
    plain: list[Words] = [tuple(random.getrandbits(64) for _ in range(4)) for _ in range(200)]  # type: ignore[misc]
    assert compare(fast, noise, plain) == 0
    close = close_tries(table, noise, 200, random)
    assert compare(fast, noise, close) == 0
    fast.band[:] = 0.0  # the broken twin: double precision alone
    assert compare(fast, noise, close) > 0


class Watched(LatticeTable):
    """A table that notes who asks for exact bounds."""

    asked: ClassVar[list[tuple[int, int]]] = []

    def acceptance(self, bucket: int, k: int, bits: int) -> tuple[Fraction, Fraction]:
        self.asked.append((k, bits))
        return super().acceptance(bucket, k, bits)


@pytest.mark.parametrize("offset", [-3, -2, 2, 3])
def test_the_error_band_leads_to_arbitrary_precision_on_both_sides(offset: int) -> None:
    noise = Noise(2, Fraction(37, 10))
    known = table_of(noise)
    table = Watched(**{each.name: getattr(known, each.name) for each in fields(known)})
    fast, k = _Fast(table), 1  # the second place of its bucket: accepted with probability 0.96
    bucket = bucket_of(table, k)
    edge = int(acceptance(table, noise, bucket, k) * (1 << DIGITS))
    word, place, _, _ = words_that_draw(table, k)
    for far, expected in ((offset, 1), (offset * 1000, 0)):
        Watched.asked.clear()
        bits = Injected([[(word, place, word_of(edge + far), 0)]])
        assert fast.attempt(bits, np.arange(1), 0)[2].tolist() == [offset < 0]
        assert len(Watched.asked) == expected


@pytest.mark.parametrize("noise", SOME, ids=named)
@pytest.mark.parametrize("parts", [0, 1, 2])
@pytest.mark.parametrize("accept", [True, False])
def test_as_many_further_digits_are_read_as_the_decision_needs(noise: LatticeNoise, parts: int, accept: bool) -> None:
    table = table_of(noise)
    k = 1 if noise.scale < 100 else int(noise.scale)
    bucket = bucket_of(table, k)
    known = DIGITS + 128 * parts
    digits = int(acceptance(table, noise, bucket, k) * (1 << known)) + (-1 if accept else 1)
    read: list[int] = []

    def more(part: int) -> int:
        read.append(part)
        return digits >> 128 * (parts - 1 - part) & (1 << 128) - 1

    assert decide(table, bucket, k, digits >> 128 * parts, more) is accept
    assert read == list(range(parts))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [2**62, 10**25])
def test_what_lies_beyond_reach_saturates(power: int, scale: int) -> None:
    noise = Noise(power, Fraction(scale))
    table = table_of(noise)
    last = len(table.masses) - 1
    assert table.masses[last] / WORD > 1e-6
    edge = int(acceptance(table, noise, last, REACH) * (1 << DIGITS))
    word = first_word(table, last)
    tries: list[Words] = [
        (w, place, word_of(edge + far), sign)
        for w, place, far, sign in product((word, word + table.masses[last] - 1), (0, WORD - 1), (-999, -1, 1), (0, 1))
    ]
    assert compare(_Fast(table), noise, tries) == 0
    distance, negative = draw_noise(table, Injected([[(word, 5, 0, 1), (word, 5, 0, 0)]]), 2)
    assert distance.tolist() == [REACH, REACH]
    assert negative.tolist() == [True, False]


@pytest.mark.parametrize("noise", SOME, ids=named)
def test_injected_words_draw_the_noise_they_spell(noise: LatticeNoise) -> None:
    table = table_of(noise)
    wanted = [0, 1, -1, 2, -2, *(int(noise.scale * z) for z in range(-6, 7) if noise.scale > 1)]
    distance, negative = draw_noise(
        table, Injected([[words_that_draw(table, k) for k in wanted]], lambda *_: 0), len(wanted)
    )
    signed = [-int(d) if minus else int(d) for d, minus in zip(distance, negative, strict=True)]
    assert signed == wanted


def test_a_rejection_starts_the_whole_draw_again_with_the_next_words() -> None:
    table = table_of(Noise(2, Fraction(37, 10)))
    zero, three = words_that_draw(table, 0), words_that_draw(table, 3)
    minus_zero = (*zero[:3], 1)
    beyond = (WORD - 1, 0, 0, 0)
    refused = (*words_that_draw(table, -1)[:2], WORD - 1, 1)  # accepted with probability 0.96
    bits = Injected([[minus_zero, beyond, refused, zero], [three, zero, three, beyond]], no_parts)
    distance, negative = draw_noise(table, bits, 4)
    assert distance.tolist() == [3, 0, 3, 0]
    assert not negative.any()


@pytest.mark.parametrize("noise", three(FAMILIES), ids=named)
def test_the_slow_path_is_never_met_by_chance(noise: LatticeNoise) -> None:
    table = table_of(noise)
    band = _Fast(table).band
    doubtful = sum(m * min(1.0, 2 * float(b) + 2.0**-DIGITS) for m, b in zip(table.masses, band, strict=True)) / WORD
    accepted = float(real(table.scale) / WORD * noise.normaliser / 2)  # half of the zeros are minus zero
    assert accepted > 0.25
    assert log2(doubtful / accepted) < -40


def test_bits_that_fall_between_the_bounds_of_the_last_bucket_end_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("udfs.noise.lattice.MOST_PARTS", 5)  # more parts take a minute and show the same
    table = build_table(PolylogWeights(p=Fraction(1), d=Fraction(11, 10), a=Fraction(1), scale=Fraction(20)))
    last = len(table.masses) - 1
    low, high = table.acceptance(last, REACH, 1024)
    assert 0 < high - low < high * Fraction(1, 10**18)  # a term of the sum, at every precision
    places = DIGITS + 128 * 40
    middle = int((low + high) / 2 * (1 << places))
    asked: list[int] = []

    def more(part: int) -> int:
        asked.append(part)
        return middle >> (places - DIGITS - 128 * (part + 1)) & ((1 << 128) - 1)

    with pytest.raises(ArithmeticError, match="could not be decided"):
        decide(table, last, REACH, middle >> (places - DIGITS), more)
    assert asked == list(range(5))
    for bound, accept in ((low * Fraction(999, 1000), True), (high * Fraction(1001, 1000), False)):
        assert decide(table, last, REACH, int(bound * (1 << DIGITS)), lambda _: 0) is accept
