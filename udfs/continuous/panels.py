"""Integrals of e^{v − fall(v)} by Gauss–Legendre panels, fall(v) = d·((L + v)^p − L^p), for any p > 1."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.highprec import context

Floats = NDArray[np.float64]
_ROOTS, _MASSES = np.polynomial.legendre.leggauss(20)
NODES, WEIGHTS = (_ROOTS + 1) / 2, _MASSES / 2  # on [0, 1]
DEEPEST = 820.0  # e^{−745} is the smallest double
MOMENT_DEPTH = 60.0
MOMENT_BITS = 320  # d·t^p may have 180 bits before the point
BEYOND = 2000.0


def fall(p: float, d: float, start: Floats | float, v: Floats | float) -> Any:
    """Return d·((start + v)^p − start^p) for v ≥ 0, within a few last bits: no difference of near numbers."""
    if p == 2:
        return d * v * (2 * start + v)
    near = d * start**p * np.expm1(p * np.log1p(v / start))
    return np.where(v < start, near, d * ((start + v) ** p - start**p))


@dataclass(frozen=True, kw_only=True)
class Panels:
    """The law of v = ln(|z|/(σa) + 1) ≥ 0, density ∝ e^{v − fall(v)}: log-concave, with L = ln a > 0 and p > 1.

    [0, ∞) is cut into panels inside which the exponent changes by a few units and v by a fraction of its distance
    L + v from the branch point of t^p, so that 20 nodes are exact to the last bits of a double. All terms are positive.
    """

    p: float
    d: float
    start: float  # L

    def rest(self, v: Floats) -> Floats:
        """Return R(v) = ∫_0^∞ e^{s − (fall(v + s) − fall(v))} ds; 0 beyond the last panel, where e^{v − fall} is 0."""
        edges, rests, _ = self._table
        inside = v < edges[-1]
        i = np.searchsorted(edges, np.where(inside, v, 0.0), side="right")
        width = np.where(inside, edges[i] - v, 0.0)
        total = self._panel(v, width) + self._drop(v, width) * rests[i]
        return np.where(inside, total, 0.0)

    def centre(self, v: Floats) -> Floats:
        """Return ∫_0^v e^{s − fall(s)} ds, for v up to the last panel."""
        edges, _, centres = self._table
        v = np.minimum(v, edges[-1])
        i = np.searchsorted(edges, v, side="right") - 1
        return centres[i] + self._drop(np.zeros(1), edges[i]) * self._panel(edges[i], v - edges[i])

    def moment(self, order: int) -> Any:
        """Return ∫_0^∞ (e^v − 1)^order·e^{v − fall(v)} dv as a number of arbitrary exponent; infinite above e^2000."""
        ctx = context(MOMENT_BITS)
        if self._largest(order + 1) > BEYOND:
            return ctx.inf
        p, d, start = ctx.mpf(self.p), ctx.mpf(self.d), ctx.mpf(self.start)
        edges = list(self._edges(order + 1, MOMENT_DEPTH))
        total = ctx.mpf(0)
        for left, right in pairwise(edges):
            for node, weight in zip(NODES, WEIGHTS, strict=True):
                v = ctx.mpf(left) + (ctx.mpf(right) - left) * node
                log = v - d * ((start + v) ** p - start**p)
                total += (ctx.mpf(right) - left) * weight * ctx.expm1(v) ** order * ctx.exp(log)
        return total

    def _largest(self, growth: int) -> float:
        # the largest value of growth·v − fall(v) where it rises at first; its slope is 0 where p·d·t^{p−1} = growth
        log_mode = math.log(growth / (self.p * self.d)) / (self.p - 1)
        if log_mode > 100:
            return math.inf
        v = max(math.exp(log_mode) - self.start, 0.0)
        return growth * v - float(fall(self.p, self.d, self.start, v))

    def _panel(self, v: Floats, width: Floats) -> Floats:
        # ∫_0^width e^{s − (fall(v + s) − fall(v))} ds
        total = np.zeros_like(width)
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            total += weight * self._drop(v, width * node)
        return total * width

    def _drop(self, v: Floats, s: Floats) -> Floats:
        return np.asarray(np.exp(s - fall(self.p, self.d, self.start + v, s)))

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats]:
        # edges; R at the edges, from the last one (where the exponential e^{−slope·s} is enough) backwards; centres
        edges = np.array(list(self._edges(1, DEEPEST)))
        widths = np.diff(edges)
        inner, drops = self._panel(edges[:-1], widths), self._drop(edges[:-1], widths)
        rests = np.empty_like(edges)
        rests[-1] = 1 / (self.p * self.d * (self.start + edges[-1]) ** (self.p - 1) - 1)
        for i in range(widths.size - 1, -1, -1):
            rests[i] = inner[i] + drops[i] * rests[i + 1]
        centres = np.concatenate([[0.0], np.cumsum(inner * self._drop(np.zeros(1), edges[:-1]))])
        return edges, rests, centres

    def _edges(self, growth: int, depth: float) -> Iterator[float]:
        """Yield panel edges of e^{growth·v − fall(v)} until it has fallen by e^{−depth} from its largest value."""
        v, largest = 0.0, 0.0
        while True:
            yield v
            t = self.start + v
            height = growth * v - float(fall(self.p, self.d, self.start, v))
            largest = max(largest, height)
            slope = growth - self.p * self.d * t ** (self.p - 1)
            if slope < 0 and height < largest - depth:
                return
            bend = self.p * (self.p - 1) * self.d * t ** (self.p - 2)
            v += min(t / max(4.0, self.p), 4 / max(abs(slope), 1e-300), (8 / bend) ** 0.5)
