"""Errors and intervals that additive kinds state before a release, against direct sums over their lattice noise."""

from fractions import Fraction
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from tests.support import heavy_sums
from tests.support.bits import Injected, words_that_draw
from tests.support.heavy_sums import MP, Family
from tests.support.kinds import REGISTRY
from tests.support.lattice import LatticeNoise
from tests.support.piecewise import of_table
from tests.support.stable import Stable
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.wide import LARGEST

STEPS = ["1", "0.01"]
SPECS: list[dict[str, Any]] = [{"kind": kind, **given} for kind, known in REGISTRY.items() for given in known.stated]


def family(spec: dict[str, Any], step: Fraction) -> Family | LatticeNoise:
    """The noise in steps, straight from the parameters (docs/mathematics.md, sections 3 and 4)."""
    given = {name: Fraction(spec[name]) for name in ("p", "d", "a") if name in spec}
    if spec["kind"] == "unit_splitting":
        sigma = Fraction(spec["threshold"]) / Fraction(str(sqrt(2 * float(spec["rho"]))))
        return Family("gaussian", sigma / step)
    if spec["kind"] == "symmetric_stable":
        return Stable(Fraction(spec["alpha"]), Fraction(spec["gamma"]) / step)
    if spec["kind"] == "designed":
        return of_table(spec["weights"])
    scale = Fraction(spec["sigma"]) / step
    if spec["kind"] == "generalized_gaussian":
        return Family("generalized", scale, **given)
    if spec["kind"] == "exponential_polylog":
        return Family("polylog", scale, **given)
    return Family(spec.get("noise", spec["kind"]), scale)


def moment(noise: Family | LatticeNoise, order: int) -> Any:
    return MP.convert(noise.moment(order)) if isinstance(noise, LatticeNoise) else heavy_sums.moment(noise, order)


def beyond(noise: Family | LatticeNoise, c: int) -> Any:
    return MP.convert(noise.beyond(c)) if isinstance(noise, LatticeNoise) else heavy_sums.beyond(noise, c)


def cases() -> list[tuple[dict[str, Any], Fraction]]:
    return [(spec, Fraction(step)) for spec in SPECS for step in STEPS]


def test_every_additive_kind_is_here() -> None:
    assert {kind for kind, m in CATALOGUE.items() if m.additive} | {"root"} == {spec["kind"] for spec in SPECS}


@pytest.mark.parametrize(("spec", "step"), cases(), ids=str)
def test_errors_are_the_sums(spec: dict[str, Any], step: Fraction) -> None:
    m, noise = build(spec, step), family(spec, step)
    mean, square = moment(noise, 1), moment(noise, 2)
    for total in (0.0, 1e6):
        if MP.isinf(mean):
            assert m.mean_absolute_error(total) == inf
        else:
            assert m.mean_absolute_error(total) == pytest.approx(float(mean * MP.mpf(float(step))), rel=1e-10)
        if MP.isinf(square):
            assert m.variance(total) == inf
        else:
            assert m.variance(total) == pytest.approx(float(square * MP.mpf(float(step)) ** 2), rel=1e-10)


@pytest.mark.parametrize(("spec", "step"), cases(), ids=str)
def test_intervals_around_are_the_smallest_that_cover(spec: dict[str, Any], step: Fraction) -> None:
    m, noise = build(spec, step), family(spec, step)
    for interval in map(Fraction, ("0.5", "0.95")):
        lower, upper = m.interval_around(1000.0, interval)
        if m.kind == "root":
            lower, upper = m.interval_around(1e9, interval)
        width = (upper - lower) / 2 / float(step)
        c = round(width)
        assert width == pytest.approx(c, abs=1e-4)
        assert beyond(noise, c) <= float(1 - interval) * (1 + 1e-13)
        if c:
            assert beyond(noise, c - 1) > float(1 - interval) * (1 - 1e-9)


def released(m: Mechanism, total: int, noise: list[int], interval: Fraction) -> Any:
    bits = Injected([[words_that_draw(m.form.noise.table, k) for k in noise]])
    return m.release(np.full(len(noise), total), bits, interval)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec["kind"] != "root"], ids=str)
def test_what_is_released_is_what_was_stated(spec: dict[str, Any]) -> None:
    step, interval = Fraction("0.25"), Fraction(19, 20)
    m = build(spec, step)
    width, error = m.form.noise.half_width(interval), sqrt(m.form.noise.variance)
    found = released(m, 4000, [0, 3, -7], interval)
    assert found.value.tolist() == [4000, 4003, 3993]
    assert (found.upper - found.value).tolist() == (found.value - found.lower).tolist() == [width] * 3
    assert m.interval_around(1000.0, interval) == (1000 - width * 0.25, 1000 + width * 0.25)
    assert found.standard_error.tolist() == [error] * 3
    assert error == sqrt(m.variance(0.0)) if m.variance(0.0) < inf else error == inf
    ends = released(m, LARGEST, [2], interval)
    assert ends.value.tolist() == ends.upper.tolist() == [LARGEST]
