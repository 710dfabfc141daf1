"""Generalised least squares over the tables of one group: estimates of all cells that add up exactly."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from udfs.estimates.cliques import Cliques
from udfs.estimates.fixed import Fixed, FixedInCliques, Units, require_agreement, settled
from udfs.estimates.group import Contrast, Group, Known, Weights
from udfs.estimates.preconditioners import Chain, Lattice
from udfs.estimates.residuals import Residuals
from udfs.estimates.rounding import Held, beside, displayed, everything, rounded
from udfs.estimates.tables import EstimateError, Int32s, Observed, add_scaled, dot, sums_between
from udfs.estimates.variances import Drawn, Draws, Variances, alike
from udfs.numbers.arrays import Floats, Int64s

TOLERANCE = 1e-4
MOST_ITERATIONS = 2000
MOST_CELLS = 200_000_000  # of a vector
ENUMERATED = 2**22  # finest common cells: up to so many they are a vector, whatever the tables
RESTARTS = 5
SEEN = 1e-3  # of a standard error: how much rounding may change a sum
CLOSE = 0.1  # of the tolerance, squared: where bounds of the error are looked at
UNBOUNDED = 1e-4  # the share of the bound that is seen, where M is not below N
NOTHING = 1e-8  # of the variance that base cells alone would give a contrast: below it steps are not scaled down
FLAT = 1e-11  # a direction whose length in N is that much below its length in M carries no information


@dataclass(eq=False)
class Solver:
    """Preconditioned conjugate gradients for N·x = right, N = Σ Aᵀ W A, in the space that fixed totals leave free.

    The preconditioner takes crossing levels apart. With M the weight of the best chain of
    tables, e the error of x and r its residual, ‖e‖_N² = rᵀN⁻¹r ≤ rᵀM⁻¹r, and |cᵀe| ≤ √(cᵀN⁻¹c)·‖e‖_N for every
    contrast c: stopping at √(rᵀM⁻¹r) ≤ τ leaves every sum of cells within τ of its own standard errors of the
    least-squares estimate (docs/mathematics.md, section 14).
    """

    group: Group
    tolerance: float
    unit: float
    iterations: int = 0
    chain: Chain = field(init=False)
    fixed: Fixed | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        require_agreement(self.group, self.unit / 2)
        self.chain = Chain(self.group)
        if not self.exact and any(known.fixed is not None for known in self.group.known):
            self.fixed = Fixed(self.group, self.chain.start)

    @cached_property
    def _lattice(self) -> Lattice:
        return Lattice(self.group)

    @cached_property
    def _residuals(self) -> Residuals:
        return Residuals(Cliques(self.group, self.group.size, enumerated=True))

    @property
    def space(self) -> Group | Cliques:
        """Where vectors live."""
        return self.group

    @property
    def exact(self) -> bool:
        """Whether two passes are the solution."""
        return self.chain.exact

    @property
    def _bounds(self) -> bool:
        """Whether errors are bounded by what tables tell."""
        return self.chain.bounds

    def _alone(self, right: Floats) -> float:
        """Return the variance that base cells alone would give a contrast."""
        alone = self.chain.start if self.fixed is None else self.fixed.metric  # above 0, also of fixed base cells
        return dot(right, alone * right)

    def rounded(self, estimate: Floats, units: Units) -> Floats:
        """Return a vector in whole units."""
        return rounded(self.chain, self.fixed, estimate, units)

    def displayed(self, estimate: Floats, tables: Sequence[Observed]) -> Floats:
        """Return a vector of whole numbers that are not negative; `tables` are on the group's base."""
        return displayed(self.chain, estimate, margins=beside(self.chain, tables))

    def estimate(self) -> tuple[Floats, float]:
        """Return the least-squares base and the bound of its error in standard errors."""
        base = self.chain.estimate()
        if self.fixed is not None:
            self.fixed.meet(base, self.unit / 2)
        if self.exact:
            return base, 0.0
        return base, self._improve(base, lambda: self.group.gradient(base), lambda: 1.0)

    def solve(self, right: Floats) -> Floats:
        """Return N⁻¹·right in the free space; raises EstimateError where the tables do not determine it."""
        if self.exact:
            return self.chain.solve(right)
        solution = self.space.zeros()
        least = NOTHING * self._alone(right)  # a sum of fixed totals has no variance
        most = math.inf  # a sum that the tables do not determine grows beyond it: no residual is small beside it
        if not self._bounds:
            most = max(least, dot(right, self._preconditioned(self._reduced(right.copy()))) / UNBOUNDED)

        def residual() -> Floats:
            out = self.space.normal(solution)
            return np.subtract(right, out, out=out)

        def scale() -> float:
            variance = dot(right, solution)
            if not variance <= most / UNBOUNDED:
                raise EstimateError(f"{self._names}: these tables do not determine what is asked for")
            return max(min(variance, most), least)

        self._improve(solution, residual, scale)
        return solution

    @property
    def _names(self) -> str:
        return ", ".join(known.name for known in self.group.known)

    def _reduced(self, right: Floats) -> Floats:
        if self.fixed is not None:
            self.fixed.reduce(right)
        return right

    def _inverse(self, right: Floats) -> Floats:
        return self._lattice.solve(right)

    def _preconditioned(self, right: Floats) -> Floats:
        out = self._inverse(right)
        if self.fixed is not None:
            self.fixed.within(out)
        return out

    def _bound(self, rest: Floats, size: float) -> float:
        """Return a bound of ‖e‖_N²: rᵀM⁻¹r of the chain, or where its M is not below N, what tables represent of r.

        Where they do not represent all of it, it is a cautious guess by `size`.
        """
        nested = isinstance(self.space, Group) and self.chain.bounds
        bound = dot(rest, self.chain.solve(rest)) if nested else self._residuals.bound(rest)
        return bound if bound < math.inf else size / UNBOUNDED

    def _improve(self, base: Floats, residual: Callable[[], Floats], scale: Callable[[], float]) -> float:
        """Improve `base` in place until the bound of its error, squared over `scale`, is small; return the bound.

        The residual of the recursion drifts from the true one by rounding, so the true one decides at the end.
        """
        done, bound = 0, math.inf
        for _ in range(RESTARTS):
            rest = self._reduced(residual())
            direction = self._preconditioned(rest)
            size = dot(rest, direction)
            bound = self._bound(rest, size)
            if bound <= self.tolerance**2 * scale():
                self.iterations = max(self.iterations, done)
                return math.sqrt(max(bound, 0.0))
            share = CLOSE
            while done < MOST_ITERATIONS:
                image = self.space.normal(direction)
                length = dot(direction, image)
                if not (size > 0 and length > FLAT * size):
                    break
                add_scaled(base, size / length, direction)
                add_scaled(rest, -size / length, image)
                del image
                step = self._preconditioned(self._reduced(rest))
                size, last = dot(rest, step), size
                done += 1
                if size <= share * self.tolerance**2 * scale():
                    if self._bound(rest, size) <= self.tolerance**2 * scale() / 4:
                        break
                    share *= CLOSE
                np.multiply(direction, size / last, out=direction)
                direction += step
        raise EstimateError(
            f"{self._names}: no solution after {done} steps ({math.sqrt(max(bound, 0.0)):.1g} standard errors are "
            "left); these tables may not determine what is asked for"
        )


@dataclass(eq=False)
class CliqueSolver(Solver):
    """The same steps over vectors of cliques, where the base is too large to be enumerated.

    In place of M stands what tables alone represent of the residual: r = Σ Aᵀρ for functions ρ of their cells, so that
    rᵀN⁻¹r ≤ Σ V·ρ², in the space that fixed totals leave free too: there these add nothing, and V is 0.
    """

    most: int = 0
    cliques: Cliques = field(init=False)

    def __post_init__(self) -> None:
        require_agreement(self.group, self.unit / 2)
        self.cliques = Cliques(self.group, self.most)
        if any(known.fixed is not None for known in self.group.known):
            self.fixed = FixedInCliques(self.cliques)

    @cached_property
    def _residuals(self) -> Residuals:
        return Residuals(self.cliques)

    @cached_property
    def _noisy(self) -> Residuals:
        return Residuals(self.cliques, firm=False)

    @property
    def space(self) -> Group | Cliques:
        """Where vectors live."""
        return self.cliques

    @property
    def exact(self) -> bool:
        """Never: there are crossing tables."""
        return False

    @property
    def _bounds(self) -> bool:
        return self._residuals.bounds

    def _alone(self, right: Floats) -> float:
        return 0.0 if self.fixed is None else dot(right, self._noisy.solve(right))

    def estimate(self) -> tuple[Floats, float]:
        """Return the least-squares vector and the bound of its error in standard errors."""
        vector = self.cliques.zeros()
        if self.fixed is not None:
            self.fixed.meet(vector, self.unit / 2)
        return vector, self._improve(vector, lambda: self.cliques.gradient(vector), lambda: 1.0)

    def _inverse(self, right: Floats) -> Floats:
        return self._residuals.solve(right)

    def rounded(self, estimate: Floats, units: Units) -> Floats:
        """Return a vector in whole units, whose cliques agree to the last one."""

        def made(group: Group, part: Floats, held: Held | None) -> Floats:
            start = held if held or self.fixed is None else everything(part, units)
            return rounded(Chain(group), None, part, units, start)

        out = self._handed_on(estimate, made)
        if isinstance(self.fixed, FixedInCliques):
            settled(out, self.fixed, units)
        return out

    def displayed(self, estimate: Floats, tables: Sequence[Observed]) -> Floats:
        """Return a vector of whole numbers that are not negative, whose cliques agree and are near all tables."""
        margins = iter(self.cliques.margins(tables))
        return self._handed_on(estimate, lambda group, part, held: displayed(Chain(group), part, held, next(margins)))

    def _handed_on(self, vector: Floats, make: Callable[[Group, Floats, Held | None], Floats]) -> Floats:
        out = self.cliques.zeros()
        parts, made = self.cliques.of(vector), self.cliques.of(out)
        for one, part, place in zip(self.cliques.cliques, parts, made, strict=True):
            held = None
            if one.parent is not None and one.shared is not None and one.from_parent is not None:
                held = one.shared, one.from_parent.up(made[one.parent])
            place[...] = make(one.group, part, held)
        return out


class Estimates:
    """Best linear unbiased estimates of one group of tables that add up exactly, and how well each is known.

    `base` are whole multiples of `unit` for the group's finest common cells; every table is their exact sum. `unit` is
    finer by tens than what was asked for where rounding would show: `rounding` is the largest difference that it makes
    in any sum of a table, in standard errors. `exact`: the tables nest in one chain, and the solution is that of two
    passes. Else conjugate gradients took `iterations` steps, and no sum of cells is further than `residual` of its own
    standard errors from the least-squares solution.
    """

    def __init__(self, tables: Sequence[Observed], *, unit: float, tolerance: float, most: int) -> None:
        self.tables = {table.name: table for table in tables}
        self._solver = solver_of(Group(tables), tolerance, unit, most)
        estimate, self.residual = self._solver.estimate()
        self.iterations, self.exact = self._solver.iterations, self._solver.exact
        self.size = estimate.size
        self._variances = Variances(self._solver.group)
        self._units = Units.of(estimate, unit)
        self._whole, self.rounding = self._rounded(estimate)
        if self.rounding > SEEN:
            self._units = Units.of(estimate, unit * 10.0 ** -math.ceil(math.log10(self.rounding / SEEN)))
            self._whole, self.rounding = self._rounded(estimate)
        self.unit = self._units.unit

    def _rounded(self, estimate: Floats) -> tuple[Floats, float]:
        solver = self._solver
        units = solver.rounded(estimate, self._units)
        sums = solver.space.folded(estimate - self._units.values(units))
        shares = [0.0]
        for known in solver.group.known:
            if known.name in sums:
                error = np.sqrt(self._variances.bounds(known))
                off = np.abs(sums.pop(known.name))
                shares.append(float(np.divide(off, error, out=np.zeros_like(off), where=error > 0).max(initial=0.0)))
        return units, max(shares)

    @cached_property
    def base(self) -> Floats:
        """The estimates of the group's finest common cells, in the measure's unit."""
        return self._units.values(self._whole)

    def table(self, name: str) -> Floats:
        """Return the estimates of one table's cells, exact multiples of `unit`; raises where no tables make them up."""
        return self._units.values(self._up(name, self._whole))

    def display(self) -> dict[str, Int64s]:
        """Return, of each table that can be estimated, whole numbers of at least 0 that add up over all tables.

        They are sums of one displayed base. Not unbiased; fixed totals are displayed as they are where they are whole,
        not negative, and no part of a sum with parts that are.
        """
        estimated: dict[str, Observed] = {}
        for name in self.tables:
            with suppress(EstimateError):
                estimated[name] = self._estimated(name)
        base = self._solver.displayed(self.base, list(estimated.values()))
        return {name: self._solver.space.up(table, base).astype(np.int64) for name, table in estimated.items()}

    def _up(self, name: str, base: Floats) -> Floats:
        return self._solver.space.up(self._estimated(name), base)

    def _estimated(self, name: str) -> Observed:
        """Return a table on the group's base; raises EstimateError where no weighted table makes up its cells."""
        table = self._solver.group.on_base(self.tables[name])
        if table.values is None and all(sums_between(known.table, table) is None for known in self._solver.group.known):
            raise EstimateError(f"{name}: no weighted table makes up its cells")
        return table

    def variances(self, name: str) -> Floats:
        """Return the variance of each estimate of a table: exact where `exact`, else an upper bound."""
        return self._variances.of(self._solver.group.on_base(self.tables[name]))

    def drawn(self, names: Sequence[str], draws: int, seed: int = 0) -> dict[str, Drawn]:
        """Return the variances that `draws` ≥ 1 drawn solutions show of tables' cells."""
        group, random = self._solver.group, np.random.default_rng(seed)
        seen = Draws(group, [group.on_base(self.tables[name]) for name in names])
        for _ in range(draws):
            base = self._solver.solve(self._solver.space.signs(random))
            seen.add({name: self._up(name, base) for name in names})
        return {name: seen.of(name) for name in names}

    def errors(self, noise: Mapping[str, Floats], names: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Yield the errors of tables' estimates for this noise of the published values, by the same solution."""
        group, space = self._solver.group, self._solver.space
        right = space.zeros()
        for name, of_cells in noise.items():
            table = group.on_base(self.tables[name])
            assert table.variance is not None
            weights = np.divide(1.0, table.variance, out=np.zeros(table.variance.shape), where=table.variance > 0)
            space.down(table, of_cells * weights, right)
        base = self._solver.solve(right)
        yield from ((name, self._up(name, base)) for name in names)

    def alike(self, name: str, parts: Mapping[str, Int32s]) -> tuple[Int32s, ...]:
        """Return classes of the positions on each axis of a table that nothing tells apart (udfs.estimates.variances).

        `parts`: of tables with noise of several laws, the law's number of each cell.
        """
        group = self._solver.group
        numbers = {other: of_cells.astype(np.float64) for other, of_cells in parts.items()}
        laws = [Known(other, group.on_base(self.tables[other]), x, x) for other, x in numbers.items()]
        return alike(group.on_base(self.tables[name]), [*group.known, *laws])

    def contrast(self, weights: Weights) -> Contrast:
        """Return the estimate of Σ weights·cells of the given base; raises where the tables do not determine it.

        Weights are those of all cells, or a factor for each axis.
        """
        own = self._solver.space.from_given(weights)
        direction = self._solver.solve(own)
        coefficients = {}
        for name, table in self.tables.items():
            if table.variance is not None:
                cells = self._up(name, direction)
                coefficients[name] = np.divide(
                    cells, table.variance, out=np.zeros_like(cells), where=table.variance > 0
                )
        value = float(self._units.values(np.asarray(dot(own, self._whole))))
        return Contrast(value, max(dot(own, direction), 0.0), coefficients, direction)

    def covariance(self, one: Contrast, other: Weights) -> float:
        """Return the covariance of a contrast and another, given by its weights on the given base."""
        return dot(one.direction, self._solver.space.from_given(other))


def solver_of(group: Group, tolerance: float, unit: float, most: int) -> Solver:
    """Return a solver of vectors on the base where this is a table, or small, or totals are held; else of cliques.

    Raises EstimateError where vectors would have more than `most` cells.
    """
    enumerable = group.base is not None or any(known.fixed is not None for known in group.known)
    if group.size <= (most if enumerable else min(most, ENUMERATED)):
        return Solver(group, tolerance, unit)
    return CliqueSolver(group, tolerance, unit, most=most)


def reconcile(
    tables: Sequence[Observed], *, unit: float, tolerance: float = TOLERANCE, most: int = MOST_CELLS
) -> Estimates:
    """Return the generalised least-squares estimates of one group of tables.

    Guarantee: estimates are linear in the published values, with coefficients of public variances alone, so they are
    unbiased where these are, and of least variance among such where the variances are true. `unit` is a power of
    ten, made finer where rounding would show, and coarser where sums would not be whole below 2⁵³. `most`: cells that
    a vector may have. Raises EstimateError where the tables cannot be reconciled. docs/mathematics.md, section 14.
    """
    return Estimates(tables, unit=unit, tolerance=tolerance, most=most)
