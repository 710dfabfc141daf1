"""Printed bounds against the numbers that JSON holds: losses are never shown as less, what is left never as more."""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest

from pipeline.accounting.interpretation import interpretation_text
from pipeline.base.plain import loss_text, source_of
from udfs.numbers.exact import bound_text, down_text, exact, up_float, up_probability

Shown = Callable[[Fraction | float], str]


def doubles() -> list[float]:
    """Doubles of all sizes, short decimals, and the doubles above these."""
    chance = random.Random(30)
    short = [float(f"{10 ** chance.uniform(-12, 12):.{chance.randint(0, 7)}e}") for _ in range(1000)]
    above = [up_float(exact(each) + Fraction(each) / 2**52) for each in short]
    return [10 ** chance.uniform(-300, 300) for _ in range(1000)] + short + above + [0.04505000000000001, 5e-324, 0.0]


def rationals() -> list[Fraction]:
    """Rational numbers, and the decimals of doubles."""
    chance = random.Random(31)
    some = [Fraction(chance.randrange(10**9), chance.randrange(1, 10**9)) for _ in range(1000)]
    return some + [exact(each) for each in doubles()] + [Fraction(901, 20_000), Fraction(3, 10)]


def in_json(number: float) -> Decimal:
    return Decimal(json.dumps(number))


def never_below(shown: Shown) -> bool:
    return all(Decimal(shown(each)) >= in_json(each) for each in doubles()) and all(
        Decimal(shown(each)) >= in_json(up_float(each)) and Fraction(shown(each)) >= each for each in rationals()
    )


@pytest.mark.parametrize("digits", [2, 3, 4, 6, 9])
def test_a_printed_bound_is_never_below_the_number_in_json(digits: int) -> None:
    assert never_below(lambda bound: bound_text(bound, digits))
    assert not never_below(lambda bound: f"{float(bound):.{digits}g}")


def test_showing_the_decimal_that_was_asked_for_is_seen() -> None:
    assert not never_below(lambda bound: f"{float(bound):.15g}")
    assert bound_text(0.04505000000000001) == bound_text(Fraction(901, 20_000)) == "0.0450501"
    assert (bound_text(5e-05), bound_text(Fraction(1, 20_000)), bound_text(0.1)) == ("0.00005", "0.00005", "0.1")
    assert (bound_text(float("inf")), bound_text(Fraction(10**400))) == ("infinite", "infinite")


def test_what_is_left_is_never_shown_as_more() -> None:
    def never_above(shown: Callable[[Fraction], str]) -> bool:
        return all(
            Decimal(shown(each)) <= in_json(-up_float(-each)) and Fraction(shown(each)) <= each
            for number in rationals()
            for each in (number, -number)
        )

    assert never_above(down_text)
    assert not never_above(lambda left: f"{float(left):.6g}")


def test_a_printed_probability_is_rounded_up() -> None:
    chance = random.Random(7)
    powers = [chance.uniform(0.0001, 0.9998) for _ in range(300)] + [0.12340000000000001, 0.05]
    assert all(Fraction(up_probability(power)) >= Fraction(power) for power in powers)
    assert not all(Fraction(f"{power:.4f}") >= Fraction(power) for power in powers)
    assert (up_probability(0.99991), up_probability(0.9999), up_probability(0.0)) == ("> 0.9999", "> 0.9999", "0.0000")


def test_lines_of_losses_show_no_less_than_their_json() -> None:
    for bound in doubles():
        loss = loss_text({"rho": bound, "epsilon": bound, "rho_simple": bound})
        means = interpretation_text({"epsilon": bound, "delta": bound, "power": 0.5}).partition("best")[0]
        figures = re.findall(r"\d[0-9.]*(?:e[-+]?\d+)?", f"{loss} {means}")
        assert len(figures) == 5
        assert all(Decimal(each) >= in_json(bound) for each in figures)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_to_play_with_rounds_losses_up() -> None:
    """The functions as they stand in the page's script, run by Node.js."""
    script = source_of("try.js")
    functions = script[script.index("  const digits = ") : script.index("  const share = ")]
    bounds = [each for each in doubles() if 1e-12 < each < 1e12]
    program = f"{functions}; console.log(JSON.stringify({json.dumps(bounds)}.map(bound)))"
    told = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout
    shown = [Decimal(each.replace(",", "")) for each in json.loads(told)]
    assert all(
        in_json(bound) <= each <= Decimal("1.011") * in_json(bound) for each, bound in zip(shown, bounds, strict=True)
    )
