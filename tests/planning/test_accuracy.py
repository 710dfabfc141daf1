"""Errors and intervals that additive kinds state before a release, against direct sums over their lattice noise."""

from fractions import Fraction
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from tests.support.bits import Injected, words_that_draw
from tests.support.guarantee import noise_of
from tests.support.kinds import REGISTRY
from tests.support.lattice import CTX
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import LARGEST

STEPS = ["1", "0.01"]
SPECS: list[dict[str, Any]] = [{"kind": kind, **given} for kind, known in REGISTRY.items() for given in known.stated]


def test_every_additive_kind_is_here() -> None:
    assert {kind for kind, m in CATALOGUE.items() if m.additive} | {"root"} == {spec["kind"] for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_errors_are_the_sums(spec: dict[str, Any], step: Fraction) -> None:
    m = build(spec, step)
    noise = noise_of(m)
    mean, square = noise.moment(1), noise.moment(2)
    for total in (0.0, 1e6):
        if CTX.isinf(mean):
            assert m.mean_absolute_error(total) == inf
        else:
            assert m.mean_absolute_error(total) == pytest.approx(float(mean * CTX.mpf(float(step))), rel=1e-10)
        if CTX.isinf(square):
            assert m.variance(total) == inf
        else:
            assert m.variance(total) == pytest.approx(float(square * CTX.mpf(float(step)) ** 2), rel=1e-10)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_intervals_around_are_the_smallest_that_cover(spec: dict[str, Any], step: Fraction) -> None:
    m = build(spec, step)
    noise = noise_of(m)
    for interval in map(Fraction, ("0.5", "0.95")):
        lower, upper = m.interval_around(1000.0, interval)
        if m.kind == "root":
            lower, upper = m.interval_around(1e9, interval)
        width = (upper - lower) / 2 / float(step)
        c = round(width)
        assert width == pytest.approx(c, abs=1e-4)
        assert noise.beyond(c) <= float(1 - interval) * (1 + 1e-13)
        if c:
            assert noise.beyond(c - 1) > float(1 - interval) * (1 - 1e-9)


def released(m: Mechanism, total: int, noise: list[int], interval: Fraction) -> Any:
    bits = Injected([[words_that_draw(m.lattice_noise.table, k) for k in noise]])
    return m.release(np.full(len(noise), total), bits, interval)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec["kind"] != "root"], ids=str)
def test_what_is_released_is_what_was_stated(spec: dict[str, Any]) -> None:
    step, interval = Fraction("0.25"), Fraction(19, 20)
    m = build(spec, step)
    width, error = m.lattice_noise.half_width(interval), sqrt(m.lattice_noise.noise_variance)
    found = released(m, 4000, [0, 3, -7], interval)
    assert found.value.tolist() == [4000, 4003, 3993]
    assert (found.upper - found.value).tolist() == (found.value - found.lower).tolist() == [width] * 3
    assert m.interval_around(1000.0, interval) == (1000 - width * 0.25, 1000 + width * 0.25)
    assert found.standard_error.tolist() == [error] * 3
    assert error == sqrt(m.variance(0.0)) if m.variance(0.0) < inf else error == inf
    ends = released(m, LARGEST, [2], interval)
    assert ends.value.tolist() == ends.upper.tolist() == [LARGEST]
