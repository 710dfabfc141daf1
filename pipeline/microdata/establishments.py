"""Draws the establishments of the synthetic economy in batches, each from the seed and its number alone."""

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.microdata.firms import Chained, Firms
from pipeline.microdata.sizes import rounded

Ints = NDArray[np.int64]

CHAIN_NUMBERS_FROM: Final = 900_000_000
"""Firms below this number own the establishment of that number alone; from here on they may own several."""

BATCHES_A_NATION: Final = 8
"""Firms have establishments in at most so many batches: beyond 8 million records the economy is a row of nations."""

FIRMS_A_NATION: Final = 800_000


@dataclass(frozen=True)
class Establishments:
    """A batch of n records, each column of length n; `number` and `firm` are the digits of the ids."""

    number: Ints
    firm: Ints
    industry: Ints  # positions in the list of industries
    county: Ints  # positions in the list of counties
    employment: Ints  # people, ≥ 0
    payroll: Ints  # thousands of dollars, ≥ 0


class Batches:
    """How the records fall into batches, one a file; what a batch holds depends on this and on nothing else."""

    def __init__(self, firms: Firms, *, records: int, files: int, seed: int) -> None:
        self.files, self._firms, self._records, self._seed = files, firms, records, seed
        self._one_at_a_time = Lock()
        self._chained = lru_cache(maxsize=2)(self._draw_chained)  # two: threads may work on both sides of a border

    def draw(self, file: int) -> Establishments:
        """Return the records of batch `file`, in random order; threads may call this at once."""
        nation = file // BATCHES_A_NATION
        first = nation * BATCHES_A_NATION
        with self._one_at_a_time:
            chained = self._chained(nation)
        last = min(first + BATCHES_A_NATION, self.files)
        # the chained establishments are spread over the nation's batches as its records are
        begin, start, stop, end = (self._first(edge) for edge in (first, file, file + 1, last))
        mine = chained.part(*(len(chained) * (edge - begin) // max(end - begin, 1) for edge in (start, stop)))
        return self._mixed(self._rng(0, file), np.arange(start + 1, stop + 1), mine, nation)

    def _first(self, file: int) -> int:
        return self._records * file // self.files

    def _rng(self, *key: int) -> np.random.Generator:
        """Return the generator of one batch or nation; spawn_key tells apart every (seed, key), however large."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))

    def _draw_chained(self, nation: int) -> Chained:
        first = nation * BATCHES_A_NATION
        records = self._first(min(first + BATCHES_A_NATION, self.files)) - self._first(first)
        return self._firms.draw(self._rng(1, nation), records)

    def _mixed(self, rng: np.random.Generator, numbers: Ints, chained: Chained, nation: int) -> Establishments:
        industry, county, employment, payroll = self._singles(rng, len(numbers) - len(chained))
        order = rng.permutation(len(numbers))
        firms = CHAIN_NUMBERS_FROM + nation * FIRMS_A_NATION + chained.firm
        own = np.full(len(industry), -1)
        firm = np.concatenate([own, firms])[order]
        return Establishments(
            number=numbers,
            firm=np.where(firm < 0, numbers, firm),
            industry=np.concatenate([industry, chained.industry])[order],
            county=np.concatenate([county, chained.county])[order],
            employment=np.concatenate([employment, chained.employment])[order],
            payroll=np.concatenate([payroll, chained.payroll])[order],
        )

    def _singles(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return industry, county, employment and payroll of establishments that are their own firm."""
        model = self._firms.economy
        _, sectors, states = model.shape
        shares = model.singles
        cells = np.repeat(np.arange(len(shares)), rounded(rng, shares * (count / shares.sum()), count))
        place = cells % (sectors * states)
        sector, state = place // states, place % states
        size = cells // (sectors * states)
        ends = np.searchsorted(size, np.arange(len(model.classes) + 1))
        employment = np.concatenate(
            [
                law.draw(rng, model.single_laws[k].ravel()[place[ends[k] : ends[k + 1]]])
                for k, law in enumerate(model.classes)
            ]
        )
        industry = model.industries.pick(sector, rng.random(count))
        county = model.counties.pick(state * sectors + sector, rng.random(count))
        return industry, county, employment, model.payroll(rng, cells, industry, employment)
