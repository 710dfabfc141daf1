"""Whole figures for every industry and state: what is published is kept, and what is withheld is filled in between.

What may lie below a code is a range of whole numbers: the sum of its children's ranges, cut by its own. So going from
fine to coarse says exactly what each figure may be, and going back, children always find figures that add up.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.base.errors import PrdpError
from pipeline.planning.economy.published import Bounds, Published
from pipeline.planning.economy.susb import Floats, Ints

HALVINGS = 100  # of the interval of exponents below, which brings its ends together
WIDEST = 60.0  # a withheld figure is within a factor e⁶⁰ of what is expected of it


@dataclass(frozen=True)
class Allocated:
    """Figures of every code and state; a code's children add up to it in each measure and state."""

    employment: Ints
    payroll: Ints


def allocated(figures: Published) -> Allocated:
    """Return whole figures within all bounds; each code's children add up to it.

    A withheld employment is expected to be the payroll over the industry's pay an employee, or, where payroll is
    withheld too, the establishments times the industry's employees an establishment, both over the states where they
    are published; a withheld payroll, the employment times that pay. Siblings depart from it by one common factor.

    Raises PrdpError where the bounds contradict each other.
    """
    establishments = figures.establishments
    staffed = _mean(figures, figures.employment, Bounds(establishments, establishments))
    pay = _mean(figures, figures.payroll, figures.employment)
    paid = figures.payroll.least == figures.payroll.most
    expected = np.where(paid, figures.payroll.least / pay, establishments * staffed)
    employment = _top_down(figures, figures.employment, expected)
    years = np.maximum(employment, establishments / 2)  # with nobody in March, half a year's work each
    return Allocated(employment, _top_down(figures, figures.payroll, years * pay))


def _mean(figures: Published, measure: Bounds, per: Bounds) -> Floats:
    """Return an industry's ratio of two measures over the states that publish both; its parent's where none does."""
    both = (measure.least == measure.most) & (per.least == per.most)
    over, under = (np.where(both, values.least, 0).sum(axis=1) for values in (measure, per))
    ratio = np.zeros(len(over))
    for code, parent in enumerate(figures.parent):
        ratio[code] = over[code] / under[code] if over[code] > 0 and under[code] > 0 else ratio[parent]
    return ratio[:, None]


def _top_down(figures: Published, bounds: Bounds, expected: Floats) -> Ints:
    least, most = bounds.least.copy(), bounds.most.copy()
    families = list(figures.families())
    for parents, children, starts in reversed(families):
        least[parents] = np.maximum(least[parents], np.add.reduceat(least[children], starts))
        most[parents] = np.minimum(most[parents], np.add.reduceat(most[children], starts))
    wrong = np.argwhere(least > most)
    if len(wrong):
        code, state = wrong[-1]  # the finest
        raise PrdpError(
            f"published figures contradict each other: {figures.codes[code]} in state {figures.states[state]}"
        )
    values = least.copy()
    values[0] = np.clip(np.rint(expected[0]), least[0], most[0])
    for parents, children, starts in families:
        values[children] = divided(values[parents], expected[children], least[children], most[children], starts)
    return values


def divided(totals: Ints, expected: Floats, least: Ints, most: Ints, starts: Ints) -> Ints:
    """Return whole numbers in [least, most] that add up to `totals`, near a common multiple of what is `expected`.

    Args:
        totals: family × state; each between the sums of its children's bounds.
        expected: child × state, all positive where `most` is; siblings lie side by side.
        least: child × state.
        most: child × state.
        starts: the position of each family's first child.
    """
    sizes = np.diff(starts, append=len(expected))

    def at(exponent: Floats) -> Floats:
        multiples: Floats = np.clip(expected * np.exp(np.repeat(exponent, sizes, axis=0)), least, most)
        return multiples

    low, high = np.full(totals.shape, -WIDEST), np.full(totals.shape, WIDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = np.add.reduceat(at(middle), starts) < totals
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    near = at(high)
    values = np.clip(np.floor(near), least, most).astype(np.int64)
    # the units that are left go one each to the children that lost most by rounding
    rest = totals - np.add.reduceat(values, starts)
    lost = np.where(values < most, near - values, -1.0)
    family = np.broadcast_to(np.repeat(np.arange(len(starts)), sizes)[:, None], lost.shape)
    order = np.lexsort((-lost, family), axis=0)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(order))[:, None] - np.repeat(starts, sizes)[:, None], axis=0)
    values += (rank < np.repeat(rest, sizes, axis=0)) & (values < most)
    if (np.add.reduceat(values, starts) != totals).any():
        raise PrdpError("withheld figures cannot be divided so that they add up")
    return values
