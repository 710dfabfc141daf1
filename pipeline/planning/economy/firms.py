"""Firms with several establishments, drawn with all of them, so that together they fit the size class of the firm."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.planning.economy import CLASSES, LARGEST, Economy, Floats, Ints

REFERENCE: Final = 3_000_000  # establishments of the economy by whose largest firms the sectors are balanced
ROUNDS: Final = 8  # of balancing
FEWEST_BRANCHES: Final = 300  # of a sector and class that are laid out, however few are seen
CREDIBLE: Final = 100  # establishments at which a draw is brought half way to the table's sums


@dataclass(frozen=True)
class Chained:
    """Establishments of firms drawn with all of theirs, in random order; the columns have one length."""

    firm: Ints  # numbers from 0, not all in use
    industry: Ints
    county: Ints
    employment: Ints
    payroll: Ints

    def __len__(self) -> int:
        return len(self.firm)

    def part(self, start: int, stop: int) -> "Chained":
        """Return the establishments from `start` to before `stop`."""
        cut = slice(start, stop)
        return Chained(self.firm[cut], self.industry[cut], self.county[cut], self.employment[cut], self.payroll[cut])


@dataclass(frozen=True)
class _Branches:
    """A branch: all establishments of one firm in one sector. Columns over branches, then over establishments."""

    size: Ints  # class of the firm
    sector: Ints
    length: Ints
    kept: Floats  # share of its establishments that the economy has room for: 1 but for the first and last of its kind
    firm: Ints  # its firm, by the number of the firm's main branch
    home: Ints  # state
    branch: Ints  # of each establishment, rising

    @property
    def firms(self) -> int:
        return len(self.firm)


class Firms:
    """Draws the firms of an economy; the same ones from the same state of the generator."""

    def __init__(self, economy: Economy) -> None:
        self.economy = economy
        self.balance = self._balance()  # by sector: brings the largest firms' employment to the table's

    def draw(self, rng: np.random.Generator, establishments: int) -> Chained:
        """Return the chained part of an economy of that many establishments in all."""
        model = self.economy
        _, sectors, states = model.shape
        branches = self._branches(rng, rounded(rng, model.chains.ravel() * establishments).reshape(model.chains.shape))
        size, sector = branches.size[branches.branch], branches.sector[branches.branch]
        state = self._states(rng, branches)
        employment = self._employment(rng, branches, state)
        industry = self._industries(rng, branches)
        cells = (size * sectors + sector) * states + state
        columns = (
            branches.firm[branches.branch],
            industry,
            model.counties.pick(state * sectors + sector, rng.random(len(state))),
            employment,
            model.payroll(rng, cells, industry, employment),
        )
        order = rng.permutation(len(state))
        return Chained(*(column[order] for column in columns))

    def _branches(self, rng: np.random.Generator, counts: Ints) -> _Branches:
        lengths = {(k, j): self._lengths(rng, k, j, int(counts[k, j])) for k, j in np.ndindex(counts.shape)}
        size = np.concatenate([np.full(len(drawn), k) for (k, _), (drawn, _) in lengths.items()])
        sector = np.concatenate([np.full(len(drawn), j) for (_, j), (drawn, _) in lengths.items()])
        length = np.concatenate([drawn for drawn, _ in lengths.values()])
        return _Branches(
            size=size,
            sector=sector,
            length=length,
            kept=np.concatenate([kept for _, kept in lengths.values()]),
            firm=self._joined(rng, size, sector),
            home=self.economy.states.pick(size * counts.shape[1] + sector, evenly_by_run(rng, size, sector)),
            branch=np.repeat(np.arange(len(length)), length),
        )

    def _lengths(self, rng: np.random.Generator, k: int, j: int, count: int) -> tuple[Ints, Floats]:
        """Return numbers of establishments ≥ 1 of branches, which add up to `count`, and the shares of them kept.

        They are a window on a row of branches: the first and the last may be cut short. So a small economy meets long
        branches as often as short ones of the same number of establishments, and sees firms in part.
        """
        model = self.economy
        mean = model.chain_mean[k, j]
        row = np.zeros(0, dtype=np.int64)
        while count > 0 and not row.sum() >= count:
            more = max(FEWEST_BRANCHES, int(np.ceil((count - row.sum()) / mean)))
            if k == LARGEST:
                drawn = model.largest_lengths[j].at(evenly(rng, more))
            elif j == model.head_offices:
                drawn = rng.geometric(1 / mean, more)
            else:
                drawn = 1 + rng.geometric(1 / (mean - 1), more)
            row = np.concatenate([row, drawn])
        start = rng.integers(0, row.sum() - count + 1)
        lengths = np.diff(np.clip(np.cumsum(row) - start, 0, count), prepend=0)
        seen = lengths > 0
        return lengths[seen], lengths[seen] / row[seen]

    def _joined(self, rng: np.random.Generator, size: Ints, sector: Ints) -> Ints:
        """Return the firm of each branch: head offices and diversified branches join another branch of their class."""
        model = self.economy
        firm = np.arange(len(size))
        joins = (sector == model.head_offices) | (
            (size == LARGEST) & (rng.random(len(size)) < model.figures.diversified)
        )
        for k in range(len(CLASSES)):
            main, others = np.flatnonzero((size == k) & ~joins), np.flatnonzero((size == k) & joins)
            if len(main) and len(others):
                firm[others] = rng.choice(main, len(others))
        return firm

    def _states(self, rng: np.random.Generator, branches: _Branches) -> Ints:
        figures, (_, sectors, _) = self.economy.figures, self.economy.shape
        stay = np.where(
            branches.size < LARGEST,
            figures.stay_in_state,
            np.where(branches.length <= 100, figures.stay_in_state_largest, 0.0),
        )
        branch = branches.branch
        elsewhere = self.economy.states.pick(
            (branches.size * sectors + branches.sector)[branch],
            evenly_by_run(rng, branches.size[branch], branches.sector[branch]),
        )
        return np.where(rng.random(len(branch)) < stay[branch], branches.home[branch], elsewhere)

    def _industries(self, rng: np.random.Generator, branches: _Branches) -> Ints:
        pick = self.economy.industries.pick
        main = pick(branches.sector, rng.random(len(branches.sector)))[branches.branch]
        other = pick(branches.sector[branches.branch], rng.random(len(main)))
        return np.where(rng.random(len(main)) < self.economy.figures.stay_in_industry, main, other)

    def _employment(self, rng: np.random.Generator, branches: _Branches, state: Ints) -> Ints:
        """Return employment by establishment, whose sums by firm lie in the firm's class."""
        firm = branches.firm[branches.branch]
        weights = self._weights(rng, branches, state)
        least = self._least(rng, branches)
        weights = self._balanced(weights, least, branches, state)
        total = np.bincount(firm, weights, branches.firms)
        wanted = np.maximum(total, least)
        for k, law in enumerate(self.economy.classes):
            main = np.flatnonzero((branches.size == k) & (branches.firm == np.arange(branches.firms)))
            people = law.draw(rng, self.economy.chain_laws[k][branches.sector[main], branches.home[main]])
            wanted[main] = people * branches.kept[main]
        sizes = weights * (np.rint(wanted) / np.where(total > 0, total, 1.0))[firm]
        # along firms one by one, rounded sums have the firms' integer totals at their ends
        order = np.argsort(firm, kind="stable")
        employment = np.empty(len(order))
        employment[order] = np.diff(np.rint(np.cumsum(sizes[order])), prepend=0.0)
        return np.rint(self._mirrored(employment)).astype(np.int64)

    def _weights(self, rng: np.random.Generator, branches: _Branches, state: Ints) -> Floats:
        model, figures, branch = self.economy, self.economy.figures, branches.branch
        size, sector = branches.size[branch], branches.sector[branch]
        largest = size == LARGEST
        weights: Floats = model.branch_mean[size, sector] * model.state_ratio[size, sector, state]
        spread = np.where(largest, figures.body_spread, figures.split_spread)
        weights *= np.exp(spread * rng.standard_normal(len(branch)) - spread**2 / 2)
        common = figures.firm_spread * rng.standard_normal(len(branches.size)) - figures.firm_spread**2 / 2
        # exp(E/α), E standard exponential, is Pareto with index α and mean α/(α − 1)
        index = figures.tail_index
        tail = (1 - evenly_by_run(rng, size, sector)) ** (-1 / index) * (index - 1) / index
        weights[largest] *= (np.exp(common[branch]) * tail)[largest]
        return weights

    def _least(self, rng: np.random.Generator, branches: _Branches) -> Floats:
        drawn: Floats = 1 + self.economy.figures.least_spread * rng.standard_exponential(branches.firms)
        return CLASSES[LARGEST].least * drawn * branches.kept

    def _mirrored(self, employment: Floats) -> Floats:
        end = self.economy.figures.tail_end
        return np.where(employment > end, end**2 / np.maximum(employment, 1), employment)

    def _balance(self) -> Floats:
        """Return by sector the factor that brings the weights of the largest firms' establishments to their sizes.

        It is below 1, since weights that fall short of the class's least total are lifted to it. One fixed draw
        determines it.
        """
        model = self.economy
        rng = np.random.default_rng([model.figures.weights_seed, 1])
        counts = np.zeros(model.chains.shape, dtype=np.int64)
        counts[LARGEST] = rounded(rng, model.chains[LARGEST] * REFERENCE)
        branches = self._branches(rng, counts)
        weights = self._weights(rng, branches, self._states(rng, branches))
        least = self._least(rng, branches)
        sector, firm = branches.sector[branches.branch], branches.firm[branches.branch]
        table = counts[LARGEST] * model.branch_mean[LARGEST]
        balance = np.ones(len(table))
        for _ in range(ROUNDS):
            people = self._people(weights * balance[sector], least, firm)
            balance *= table / np.bincount(sector, people, len(table))
        return balance

    def _balanced(self, weights: Floats, least: Floats, branches: _Branches, state: Ints) -> Floats:
        """Return the weights with those of the largest firms brought near to the table's sums by sector and by state.

        The more establishments a sum has, the nearer (`CREDIBLE`): few are left to chance, giants among them.
        """
        model, branch = self.economy, branches.branch
        largest = np.flatnonzero(branches.size[branch] == LARGEST)
        firm, sector, state = branches.firm[branch[largest]], branches.sector[branch[largest]], state[largest]
        sizes = weights[largest] * self.balance[sector]
        wanted = model.branch_mean[LARGEST, sector] * model.state_ratio[LARGEST, sector, state]
        for _ in range(ROUNDS):
            for label, labels in ((sector, model.shape[1]), (state, model.shape[2])):
                people = np.bincount(label, self._people(sizes, least, firm), labels)
                table = np.bincount(label, wanted, labels)
                count = np.bincount(label, minlength=labels)
                factor = np.where(people > 0, table / np.maximum(people, 1.0), 1.0) ** (count / (count + CREDIBLE))
                sizes *= np.sqrt(factor)[label]  # half the way, since sectors and states pull at the same sizes
        weights[largest] = sizes
        return weights

    def _people(self, sizes: Floats, least: Floats, firm: Ints) -> Floats:
        total = np.bincount(firm, sizes, len(least))
        return self._mirrored(sizes * np.maximum(1, least / np.where(total > 0, total, 1.0))[firm])


def evenly_by_run(rng: np.random.Generator, size: Ints, sector: Ints) -> Floats:
    """Return numbers in [0, 1), evenly spread within each run of equal class and sector."""
    if not len(size):
        return np.zeros(0)
    starts = np.flatnonzero(np.diff(size, prepend=-1) | np.diff(sector, prepend=-1))
    return np.concatenate([evenly(rng, int(run)) for run in np.diff(starts, append=len(size))])


def evenly(rng: np.random.Generator, count: int) -> Floats:
    """Return `count` numbers, each uniform on [0, 1), one in each of `count` equal parts, in random order.

    Sums over such draws of a heavy tail vary far less than over independent ones.
    """
    return np.minimum((rng.permutation(count) + rng.random(count)) / max(count, 1), 1 - 2**-40)


def rounded(rng: np.random.Generator, sizes: Floats, total: int | None = None) -> Ints:
    """Return whole numbers whose means are `sizes`, any run of them within 1 of its sum, by one random start.

    A `total` is the sum of `sizes` where it is a whole number, and is then kept whatever the rounding.
    """
    ends = np.floor(np.cumsum(sizes) + rng.random()).astype(np.int64)
    if total is not None:
        ends = np.minimum(ends, total)
        ends[-1] = total
    counts: Ints = np.diff(ends, prepend=0)
    return counts
