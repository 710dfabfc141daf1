"""What a transformation mechanism releases at chosen noise, and how often its intervals hold, by exact sums."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.bits import Injected, words_that_draw
from tests.support.lattice import Noise
from udfs.mechanisms.base import Released

INTERVAL = Fraction(19, 20)


def noise_of(m: Any) -> Noise:
    """The mechanism's noise in lattice steps."""
    return Noise(1 if m.noise == "laplace" else 2, m.sigma / m.lattice_step)


def release(m: Any, total: int, noise: list[int], interval: Fraction = INTERVAL) -> Released:
    """What is released for one total at the given noises."""
    bits = Injected([[words_that_draw(m.lattice_noise.table, k) for k in noise]], lambda *_: 0)
    released: Released = m.release(np.full(len(noise), total, dtype=np.int64), bits, interval)
    return released


def farthest(holds: Callable[[list[int]], NDArray[np.bool_]], top: int) -> int:
    """The largest k ≤ top for which a condition holds that holds up to it and not beyond (−1: nowhere)."""
    low, high = -1, top
    while low < high:
        steps = sorted({low + -(-(high - low) * i // 64) for i in range(1, 65)})
        good = int(np.sum(np.cumprod(holds(steps))))
        low, high = (steps[good - 1] if good else low), (steps[good] - 1 if good < len(steps) else high)
    return low


def coverage(m: Any, total: int, interval: Fraction) -> Any:
    """P(lower ≤ q ≤ upper), exactly: the noises whose interval misses q lie beyond one on either side."""
    noise, q, top = noise_of(m), float(total * m.step), int(30 * m.sigma / m.lattice_step)
    up = farthest(lambda ks: release(m, total, ks, interval).lower <= q, top)
    down = farthest(lambda ks: release(m, total, [-k for k in ks], interval).upper >= q, top)
    return 1 - noise.from_on(up + 1) - noise.from_on(down + 1)
