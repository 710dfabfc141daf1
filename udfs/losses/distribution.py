"""Privacy-loss distributions of several draws of noise together, from above (docs/mathematics.md).

Result: an ε such that (ε, δ) holds, and the power of the best test, for a record that shifts each of some independent
noises: never below the true ones. ε is at most the `gap` it is given with above the least one for a δ that is smaller
by what truncation, rounding and the Fourier transform took.

Method: the atoms of each noise (udfs.losses.atoms) are put on a grid of losses. An atom between two grid points is
split between them so that both its probabilities, under P and under Q, are kept: its δ can only rise, since
(1 − e^{ε − ℓ})₊ is convex in e^{−ℓ}. The grids of all noises have one spacing, so that the sum of their independent
losses is a discrete convolution, by Fourier transforms of masses tilted by e^{θℓ}: their error is then small against
any δ (Gopi, Lee, Wutschitz 2021 bound it untilted; splitting: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from udfs.losses.atoms import Atoms, Pair, Window, atoms_of
from udfs.noise.weights import GaussianWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, fraction, real

POINTS = 1 << 14  # of the grid, at first
MOST_POINTS = 1 << 21
FINER = 0.5  # coarseness of atoms, in grid points
CUT = 1e-4  # share of δ that truncation may take
ROUGH = 64  # atoms across the widths that are measured first
ALLOWED = (1e-3, 1e-2)  # gap of ε: absolute, or relative
HALF = 0.5  # of it for the grid; the rest covers what δ pays for
TILTS = 60
MOST_TILT = 600.0  # nats between the ends of a tilted grid
MOST_TILTINGS = 4
ENOUGH = 0.9999
ROUND = 2.0**-53
STAGE = 16 * ROUND  # error of a stage of a transform, relative to the norm: twice Higham 2002, theorem 24.2
UNDERFLOW = 2.0**-1073  # what is lost of a number that tilting leaves no double for
SLACK = 1 + 1e-9  # far above the rounding of sums of a million positive numbers
HALVINGS = 40  # of ε, of the largest loss
MERGED = 16  # grid points that count as one where tilts are chosen
LARGEST = 700.0


@dataclass(frozen=True, eq=False)
class Distribution:
    """Masses on the losses top − j·spacing, j = 0, 1, …, and a mass of infinite loss: from above."""

    mass: Floats
    top: float
    spacing: float
    infinite: float


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of independent losses: masses from above at falling `losses`, and what their errors may add to δ.

    A mass is at most `mass` plus an error; weighted by any c ≥ 0, errors add at most the Euclidean norm of c·`error`.
    """

    losses: Floats
    mass: Floats
    error: Floats
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Return a δ such that (ε, δ) holds."""
        above = len(self.losses) - int(np.searchsorted(self.losses[::-1], epsilon, side="right"))
        weight = -np.expm1(epsilon - self.losses[:above])
        errors = weight * self.error[:above]
        most = float(np.max(errors, initial=0.0)) or 1.0  # squares of small errors would be nothing
        with np.errstate(over="ignore", invalid="ignore"):  # no `dot`: its threads wait for each other
            finite = float(np.sum(weight * self.mass[:above])) + most * math.sqrt(float(np.sum((errors / most) ** 2)))
        return finite * SLACK + self.infinite

    def test(self, epsilon: float, size: float) -> float:
        """Return δ(ε) + e^ε·size: no test of this size has more power."""
        return (self.delta(epsilon) + math.exp(epsilon) * size) * SLACK


@dataclass(frozen=True)
class Bounds:
    """An ε at a δ, and the power of the best test at a size, both from above.

    `gap`: the ε is at most so far above the least one for a δ that is smaller by what truncation and rounding took.
    """

    epsilon: float
    power: float
    gap: float


def bounds_of(pairs: Sequence[Pair], delta: float, size: float) -> Bounds:
    """Return the bounds of all pairs together: of every test between all P and all Q; ε ≥ 0, maybe infinite.

    Raises ValueError unless 0 < δ < 1 and 0 < size < 1.
    """
    if not 0 < delta < 1:
        raise ValueError("delta: must be above 0 and below 1")
    if not 0 < size < 1:
        raise ValueError("size: must be above 0 and below 1")
    points = POINTS
    parts, gap = _parts(pairs, delta, points)
    power = _power(parts, size)
    while True:
        epsilon = _epsilon(parts, delta)
        allowed = HALF * max(ALLOWED[0], ALLOWED[1] * epsilon)
        if gap <= allowed or points >= MOST_POINTS or not math.isfinite(epsilon):
            return Bounds(epsilon, power, gap)
        points = min(MOST_POINTS, max(2 * points, math.ceil(1.1 * points * gap / allowed)))
        parts, gap = _parts(pairs, delta, points)


def delta_of(pair: Pair, epsilon: float, delta: float) -> float:
    """Return an upper bound of δ(ε) of one pair, ε ≥ 0: close to it where it is not far below `delta`."""
    beyond = CUT * delta
    window = _window(atoms_of(pair, beyond, math.inf), beyond)
    spacing = (window[1] - window[0]) / POINTS or 1.0
    atoms = atoms_of(pair, beyond, FINER * spacing, window)
    lost = np.sum(atoms.mass * np.maximum(-np.expm1(np.minimum(epsilon - atoms.loss, 0.0)), 0.0))
    return float(lost) * SLACK + atoms.infinite


def _power(parts: Sequence[Distribution], size: float) -> float:
    """Return min over ε of δ(ε) + e^ε·size, convex in e^ε; any ε gives a bound.

    Dong, Roth, Su 2022, proposition 6: a trade-off function is the conjugate of δ.
    """
    together = _together(parts, 0.0)
    grid = together.losses[together.losses < LARGEST]
    low, high = 0, len(grid) - 1
    while high - low > 2:  # thirds
        third = (high - low) // 3
        one, other = (together.test(float(grid[i]), size) for i in (low + third, high - third))
        low, high = (low, high - third) if one <= other else (low + third, high)
    return min([1.0, *(together.test(float(epsilon), size) for epsilon in grid[low : high + 1])])


def _parts(pairs: Sequence[Pair], delta: float, points: int) -> tuple[list[Distribution], float]:
    """Return the pairs' distributions on grids of one spacing, `points` in all, and how far they raise the sum."""
    beyond = CUT * delta / (2 * max(1, len(pairs)))
    distinct = dict.fromkeys(pairs)
    windows = {pair: _window(atoms_of(pair, beyond, math.inf), beyond) for pair in distinct}
    rough = sum(high - low for low, high in (windows[pair] for pair in pairs)) / ROUGH
    if rough > 0:  # atoms that are wide, as those of small shifts are, hide where losses end
        windows = {pair: _window(atoms_of(pair, beyond, rough), beyond) for pair in distinct}
    spacing = sum(high - low for low, high in (windows[pair] for pair in pairs)) / points or 1.0
    known, gap = {}, 0.0
    for pair in distinct:
        atoms = atoms_of(pair, beyond, FINER * spacing, windows[pair])
        known[pair] = _on_grid(atoms, windows[pair], spacing)
        gap += pairs.count(pair) * (spacing + atoms.coarseness)
    return [known[pair] for pair in pairs], gap


def _window(atoms: Atoms, beyond: float) -> Window:
    """Return losses beyond which atoms have at most the mass `beyond` at each end."""
    below, above = np.cumsum(atoms.mass), np.cumsum(atoms.mass[::-1])[::-1]
    low = int(np.count_nonzero(below <= beyond))
    high = len(above) - 1 - int(np.count_nonzero(above <= beyond))
    most = float(atoms.loss[max(low, high)])
    return float(atoms.loss[min(low, high)]), most + abs(most) * 2.0**-40  # beyond what rounding makes of it elsewhere


def _on_grid(atoms: Atoms, window: Window, spacing: float) -> Distribution:
    """Return atoms of the window on the grid that ends at its upper end; those below it at the lowest point."""
    low, high = window
    kept = atoms.loss <= high
    infinite = atoms.infinite + float(atoms.mass[~kept].sum()) * SLACK
    mass, depth = atoms.mass[kept], (high - np.maximum(atoms.loss[kept], low)) / spacing
    depth *= 1 - 2.0**-50  # rounded towards larger losses
    cells = np.floor(depth)
    inside = (depth - cells) * spacing
    # m·(e^t − 1)/(e^h − 1) to the lower point: both probabilities are kept
    share = np.exp(inside - spacing) * -np.expm1(-inside) / -math.expm1(-spacing) * (1 - 2.0**-40)
    index = cells.astype(np.intp)
    length = math.ceil((high - low) / spacing) + 2
    upper, lower = np.bincount(index, mass * (1 - share), length), np.bincount(index + 1, mass * share, length)
    summed = np.add(upper, lower, dtype=np.float64)
    last = int(np.flatnonzero(summed)[-1])
    return Distribution(summed[: last + 1] * SLACK, high, spacing, infinite)


def _epsilon(parts: Sequence[Distribution], delta: float) -> float:
    """Return the least ε that some tilts prove: each is chosen for the last one's ε, and any is right."""
    length = sum((len(part.mass) - 1) * part.spacing for part in parts)
    tilts = np.append(0.0, np.geomspace(0.1, MOST_TILT, TILTS)) / (length or 1.0)
    moments = np.zeros(len(tilts))  # ln E e^{θL}
    for part, times in Counter(parts).items():
        mass = np.add.reduceat(part.mass, np.arange(0, len(part.mass), MERGED))
        rough = replace(part, mass=mass, spacing=part.spacing * MERGED)
        moments += [times * (tilt * part.top + math.log(_tilted(rough, tilt).sum())) for tilt in tilts.tolist()]
    epsilon = float(np.min((moments[1:] - math.log(delta)) / tilts[1:]))  # Markov's inequality
    best = math.inf
    for _ in range(MOST_TILTINGS):
        tilt = float(tilts[np.argmin(moments - tilts * epsilon)])
        epsilon = _epsilon_of(_together(parts, tilt), delta)
        if not epsilon < best * ENOUGH:
            break
        best = epsilon
    return min(best, epsilon)


def _epsilon_of(together: Sum, delta: float) -> float:
    low, high = 0.0, max(float(together.losses[0]), 0.0)
    if together.delta(low) <= delta:
        return low
    if not together.delta(high) <= delta:
        return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if together.delta(middle) <= delta else (middle, high)
    return high


def _tilted(part: Distribution, tilt: float) -> Floats:
    tilted: Floats = part.mass * np.exp(-tilt * part.spacing * np.arange(len(part.mass)))
    return tilted


@dataclass(frozen=True, eq=False)
class _Law:
    """Masses that add up to 1, each off by some error: all errors have at most the Euclidean norm `error`."""

    mass: Floats
    error: float


def _together(parts: Sequence[Distribution], tilt: float) -> Sum:
    """Return the sum of independent losses of one spacing, tilted by e^{θℓ} for the transforms."""
    spacing, top = parts[0].spacing if parts else 1.0, math.fsum(part.top for part in parts)
    scale, laws = 0.0, list[_Law]()
    for part, times in Counter(parts).items():
        tilted = _tilted(part, tilt)
        total, left = float(tilted.sum()), times
        scale += times * math.log(total)
        law = _Law(tilted / total, math.sqrt(len(tilted)) * UNDERFLOW / total)
        while left:  # a law that is met k times enters as those of 1, 2, 4, … times
            if left % 2:
                laws.append(law)
            left //= 2
            law = _convolved(law, law) if left else law
    heap = [(len(law.mass), i, law) for i, law in enumerate(laws)]
    heapq.heapify(heap)
    while len(heap) > 1:  # the shortest first, so that few transforms are long
        (_, i, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        both = _convolved(one, other)
        heapq.heappush(heap, (len(both.mass), i, both))
    law = heap[0][2] if heap else _Law(np.ones(1), 0.0)
    length = len(law.mass)
    # a mass is e^{θ(top − ℓ)} times its tilted one
    factor = scale + tilt * spacing * np.arange(length)
    with np.errstate(divide="ignore", over="ignore"):
        mass = np.exp(np.log(law.mass) + factor) * SLACK
        errors = np.exp(np.log(law.error) + factor)
    losses = top - np.arange(length, dtype=np.float64) * spacing
    losses += (abs(top) + length * spacing) * 2.0**-48  # the grids' ends and their sum are rounded
    return Sum(losses, mass, errors, math.fsum(part.infinite for part in parts) * SLACK)


def _convolved(one: _Law, other: _Law) -> _Law:
    """Return the law of the sum of two independent losses.

    A transform of 2^t numbers is right to STAGE·(t + 1) of its norm, and none exceeds 1 anywhere, or with errors 1.01:
    so E = E_a + E_b + STAGE·(t + 1)·(‖a‖ + ‖b‖ + min(‖a‖, ‖b‖)), and the rounding of the product itself.
    """
    length = len(one.mass) + len(other.mass) - 1
    stages = max(1, math.ceil(math.log2(length)))
    product = np.fft.rfft(one.mass, 2**stages)
    product *= product if other is one else np.fft.rfft(other.mass, 2**stages)
    norms = [math.sqrt(float(np.sum(law.mass * law.mass))) for law in (one, other)]
    transforms = STAGE * (stages + 1) * (sum(norms) + min(norms)) + 8 * ROUND * min(norms)
    mass = np.maximum(np.fft.irfft(product, 2**stages)[:length], 0.0)
    return _Law(mass, 1.01 * (one.error + other.error + transforms))


# The δ at which discrete Gaussian noise hides a shift, for a given ε: exactly, but for digits that are counted.
#
# For Z and Z + n of scale s the privacy loss is L(x) = (n² − 2nx)/(2s²), which falls in x. With c the largest whole
# number for which L(c) > ε, that is c < n/2 − εs²/n,
#
#     δ(ε) = P(Z ≤ c) − e^ε·P(Z ≤ c − n),
#
# the analytic Gaussian condition (Balle and Wang 2018, theorem 8) with sums in place of integrals.

BITS = 400
SUMMED = 64  # scales up to which sums are added term by term
ORDERS = 12  # corrections of the Euler–Maclaurin formula for wider noise
FAR = 80  # scales beyond which a tail is nothing: e^{−3200}
NOTHING = Fraction(1, 10**1300)


@lru_cache(maxsize=1024)
def delta_above(weights: GaussianWeights, steps: int, epsilon: Fraction) -> Fraction:
    """Return an upper bound of δ(ε) at a shift of `steps` ≥ 0, ε ≥ 0, above it by less than one part in 10²⁰ of 1.

    It is the same on every machine. Of a δ that is above 10⁻³⁰⁰ it is right to many more digits than a double has.
    """
    if not steps:
        return Fraction(0)
    scale, ctx = weights.scale, context(BITS)
    last = ceil(Fraction(steps, 2) - epsilon * scale**2 / steps) - 1
    total = _mass(ctx, scale)
    most, least = _up_to(ctx, scale, last, total)[1], _up_to(ctx, scale, last - steps, total)[0]
    error = 1 + ctx.ldexp(1, 64 - BITS)
    spent = most * error - ctx.exp(real(ctx, epsilon)) * least / error
    return max(fraction(spent), NOTHING)


def _mass(ctx: Any, scale: Fraction) -> tuple[Any, Any]:
    """Return bounds of Σ e^{−j²/(2s²)} over all j: of wide noise Poisson's s√(2π)·(1 + 2·Σ e^{−2π²s²m²})."""
    if scale > SUMMED:
        middle = real(ctx, scale) * ctx.sqrt(2 * ctx.pi)
        return middle * (1 - ctx.ldexp(1, 8 - BITS)), middle * (1 + ctx.ldexp(1, 8 - BITS))
    low, high = _summed(ctx, scale, 1)
    return 1 + 2 * low, 1 + 2 * high


def _up_to(ctx: Any, scale: Fraction, last: int, total: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return bounds of P(Z ≤ last)."""
    low, high = _tail(ctx, scale, -last if last < 0 else last + 1)
    if last < 0:
        return low / total[1], high / total[0]
    return 1 - high / total[0], 1 - low / total[1]


def _tail(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Return bounds of Σ e^{−j²/(2s²)} over j ≥ k ≥ 1."""
    if k > FAR * scale + 1:
        # the terms fall at least as fast as a geometric series of ratio e^{−k/s²}, which starts below e^{−k²/(2s²)}
        first = ctx.exp(real(ctx, -(Fraction(k) ** 2) / (2 * scale**2)))
        return ctx.mpf(0), first / -ctx.expm1(real(ctx, -k / scale**2))
    return _summed(ctx, scale, k) if scale <= SUMMED else _expanded(ctx, scale, k)


def _summed(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Add terms until they are nothing: each is the last times a ratio that falls by the same factor."""
    square = real(ctx, 1 / scale**2)
    term, ratio, factor = ctx.exp(-square * k * k / 2), ctx.exp(-square * (k + ctx.mpf(1) / 2)), ctx.exp(-square)
    total, least = ctx.mpf(0), ctx.ldexp(term, -BITS)
    while term > least:
        total += term
        term, ratio = term * ratio, ratio * factor
    error = ctx.ldexp(total, 40 - BITS)  # a few thousand roundings, and the terms that are left
    return total - error, total + error + term / (1 - ratio)


def _expanded(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Return ∫_k^∞ f + f(k)/2 − Σ B_{2m}/(2m)!·f^{(2m−1)}(k) and bounds of the rest, f = e^{−x²/(2s²)}.

    f^{(n)}(x) = (−1)ⁿ·He_n(x/s)·f(x)/sⁿ; the rest is at most 2ζ(2M)/(2π)^{2M}·∫_k^∞ |f^{(2M)}| (Euler and Maclaurin),
    and |He_{2M}(u)| at most the polynomial with the same coefficients, all positive.
    """
    s = real(ctx, scale)
    u = k / s
    density = ctx.exp(-u * u / 2)
    total = s * ctx.sqrt(ctx.pi / 2) * ctx.erfc(u / ctx.sqrt(2)) + density / 2
    before, now = ctx.mpf(1), u  # He_0, He_1
    for m in range(1, ORDERS + 1):
        total += ctx.bernoulli(2 * m) / ctx.factorial(2 * m) * now * density / s ** (2 * m - 1)
        for n in (2 * m - 1, 2 * m):
            before, now = now, u * now - n * before
    order, rest = 2 * ORDERS, ctx.mpf(0)
    integral = ctx.sqrt(ctx.pi / 2) * ctx.erfc(u / ctx.sqrt(2))  # ∫_u^∞ t^power·e^{−t²/2} dt, by parts
    for power in range(0, order + 1, 2):
        m = ORDERS - power // 2
        rest += ctx.factorial(order) / (ctx.ldexp(1, m) * ctx.factorial(m) * ctx.factorial(power)) * integral
        integral = u ** (power + 1) * density + (power + 1) * integral
    rest *= 2 * ctx.zeta(order) / (2 * ctx.pi) ** order / s ** (order - 1)
    rest += ctx.ldexp(total, 64 - BITS)
    return total - rest, total + rest
