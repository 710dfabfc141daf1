"""Random bits from a seed, for errors that studies and estimates draw: the noise of releases never comes from them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udfs.noise.keystream import WORDS


@dataclass(frozen=True)
class SeededBits:
    """Bits for `size` cells of which every seed and `stream` has its own; no secret, and no SecretKey."""

    size: int
    seed: int
    stream: int

    def words(self, rows: NDArray[np.intp], draw: int) -> NDArray[np.uint64]:
        """Return the words of the given draw, shape (len(rows), WORDS)."""
        every = self._random(draw).integers(0, 2**64, (self.size, WORDS), dtype=np.uint64)
        return np.ascontiguousarray(every[rows])

    def more(self, row: int, draw: int, part: int) -> int:
        """Return 128 further bits of the given draw."""
        return int.from_bytes(self._random(draw, row, 1 + part).bytes(16))

    def _random(self, *address: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.stream, *address)))
