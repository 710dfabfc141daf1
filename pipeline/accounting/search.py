"""Where a condition changes that changes once: among decimals of eight digits, whole numbers or doubles.

The condition is decided exactly at every number that matters; a float, its gap, only leads the search there quickly.
The search is our own: scipy's brentq needs a finite gap at both ends and a sign change, but gaps here are ±∞ where a
scale has no mechanism, and where conditions change more than once the decimal reached depends on the steps taken,
which plans' digests hold.
"""

from collections.abc import Callable
from fractions import Fraction
from math import floor, isfinite, log, log10

DIGITS = 8
UNITS = 10_000_000  # of the last digit in 1
A_DECADE = 9 * UNITS  # how many decimals of DIGITS digits lie in [1, 10)
LOWEST, HIGHEST = -50 * A_DECADE, 50 * A_DECADE  # 10⁻⁵⁰ and 10⁵⁰
WIDEN = 8  # factor by which the longest step outward grows
MOST_REPEATS = 3  # steps that may move the same end of a bracket

Point = tuple[int, float]  # a number, and the gap there
Gap = Callable[[int], float]
Holds = Callable[[int], bool]


def decimal(n: int) -> Fraction:
    """Return the n-th decimal of DIGITS significant digits: 1 for n = 0, growing with n."""
    decade, units = divmod(n, A_DECADE)
    ten = Fraction(10**decade) if decade >= 0 else Fraction(1, 10**-decade)
    return Fraction(UNITS + units, UNITS) * ten


def number_below(number: Fraction) -> int:
    """Return an n whose decimal is at most `number` and next to it, as far as doubles tell."""
    return number_of(log10(number))


def crossing(gap: Gap, holds: Holds, start: int) -> int | None:
    """Return n with holds(n) and not holds(n − 1), LOWEST < n ≤ HIGHEST; None if it holds at LOWEST.

    Where it holds nowhere, HIGHEST + 1. `gap`(n) is a logarithm, below 0 about where the condition does not hold, that
    grows with n. A condition that changes once changes there; of another, it is one of its changes.
    """
    return decided(holds, *_by_gap(gap, start))


def _by_gap(gap: Gap, start: int) -> tuple[int, int]:
    """Return (n − 1, n) about the change of the gap's sign, or the end up to which it does not change, twice."""
    low, high = _bracket(gap, start, gap(start))
    repeats, side = 0, 0
    while high[0] - low[0] > 1:
        n = (low[0] + high[0]) // 2
        if repeats < MOST_REPEATS and isfinite(low[1]) and isfinite(high[1]):
            # where one end alone moves, step ever farther past the zero of the line; then halve
            past = -side * 4**repeats if repeats else 0
            n = max(low[0] + 1, min(high[0] - 1, _between(low, high) + past))
        point = (n, gap(n))
        moved = -1 if point[1] < 0 else 1
        repeats, side = (repeats + 1 if moved == side else 0), moved
        low, high = (point, high) if moved < 0 else (low, point)
    return low[0], high[0]


def _bracket(gap: Gap, n: int, value: float) -> tuple[Point, Point]:
    """Return two numbers with their gaps, the first's below 0 and not the second's, or the same end twice."""
    way, stride, last = (1 if value < 0 else -1), A_DECADE, (n, value)
    while (last[1] < 0) == (way > 0):
        n, value = last
        end = HIGHEST if way > 0 else LOWEST
        if n == end:
            return last, last
        # where the gap would be 0 if it grew with the number's logarithm, and a little beyond
        far = 1.2 * abs(value) / log(10) * A_DECADE + A_DECADE // 100
        n = max(LOWEST, min(HIGHEST, n + way * int(min(stride, far))))
        before, last, stride = last, (n, gap(n)), stride * WIDEN
    return (before, last) if way > 0 else (last, before)


def _between(low: Point, high: Point) -> int:
    x, y = log10_of(low[0]), log10_of(high[0])
    return number_of(x + (y - x) * low[1] / (low[1] - high[1])) if low[1] < high[1] else (low[0] + high[0]) // 2


def log10_of(n: int) -> float:
    """Return the logarithm of the n-th decimal."""
    decade, units = divmod(n, A_DECADE)
    return decade + log10(1 + units / UNITS)


def number_of(x: float) -> int:
    """Return the number of a decimal next to 10^x."""
    decade: int = floor(x)
    return decade * A_DECADE + min(A_DECADE - 1, floor((float(10 ** (x - decade)) - 1) * UNITS))


def decided(holds: Holds, low: int, high: int) -> int | None:
    """Return the change of the condition that is nearest above or below: by ever larger steps, then by halves."""
    stride = 1
    while not (reached := holds(high)) and high < HIGHEST:
        low, high, stride = high, min(HIGHEST, high + stride), stride * 2
    if not reached:
        return HIGHEST + 1
    stride = 1
    low = min(low, high - 1)
    while low >= LOWEST and holds(low):
        low, high, stride = max(LOWEST - 1, low - stride), low, stride * 2
    if low < LOWEST and holds(LOWEST):
        return None
    low = max(low, LOWEST)
    return neighbours(high, low, holds)[0]


def neighbours(kept: int, refused: int, keeps: Holds) -> tuple[int, int]:
    """Return (kept, refused) next to each other, from two numbers of which the first keeps a condition."""
    while abs(refused - kept) > 1:
        middle = (kept + refused) // 2
        kept, refused = (middle, refused) if keeps(middle) else (kept, middle)
    return kept, refused


def halved(kept: float, refused: float, keeps: Callable[[float], bool], times: int) -> tuple[float, float]:
    """Return (kept, refused) with their distance halved so many times; the first keeps a condition."""
    for _ in range(times):
        middle = (kept + refused) / 2
        kept, refused = (middle, refused) if keeps(middle) else (kept, middle)
    return kept, refused
