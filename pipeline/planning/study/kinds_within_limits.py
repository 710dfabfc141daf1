"""Which kind of noise has the least error in each table of a plan within the plan's own limits: `prdp study kinds`.

Result, for each table, or each of its parts, all others staying as they are: of every kind and shape the mechanism of
least noise with which

- the table loses no more at the binding reference than it does now: of the limits that count records of the table the
  one of which the plan uses the largest share; and
- at every other limit it loses at most its loss now and an equal part, of all tables, of what the plan leaves there.

So kinds differ in their errors alone, and where references are single records all tables may change together: losses
add up. What is stated was checked by the plan's own total loss, exactly. Designed noise
(docs/design.md) is one of the kinds, where limits are of single records. Only public numbers enter.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite, log

from pipeline.accounting.accountant import NAME
from pipeline.accounting.allocation_problem import Bound
from pipeline.accounting.calibrate import Family, scale_of
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.base.errors import PlanError
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import policy_of
from pipeline.planning.study.comparison import FAMILIES, family, shapes
from pipeline.planning.study.design import Design, Wish, design
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import crossing, down_text, exact

DESIGNED = "designed"
KINDS = (*dict.fromkeys(kind for kind, _ in FAMILIES), DESIGNED)
NO_TOTAL = "its error grows with the true total, and no total is known"

OnTry = Callable[[int], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """What is least, as of a design; which kinds are tried, for which tables; true totals, by table and part.

    Where a total is not known, noise whose error grows with it is left out.
    """

    minimise: str
    coverage: Fraction
    kinds: Collection[str]
    tables: Collection[str]
    totals: Mapping[tuple[str, str | None], Fraction]

    def total(self, of: QueryPolicy) -> Fraction | None:
        """Return the true total at which errors of a table, or of a part, are compared; None where none is known."""
        return self.totals.get((of.name, of.part))

    def error(self, mechanism: Mechanism, of: QueryPolicy) -> float:
        """Return what is minimised, in units or squared units, of a mechanism in a table."""
        total = float(self.total(of) or 0)
        if self.minimise == "interval":
            lower, upper = mechanism.interval_around(total, self.coverage)
            return float(upper - lower)
        return mechanism.variance(total) if self.minimise == "variance" else mechanism.mean_absolute_error(total)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A mechanism within the limits, its error, and what the table loses at the references that count."""

    mechanism: Mechanism
    error: float
    losses: Sequence[Fraction]
    design: Design | None = None

    @property
    def family(self) -> str:
        """The family whose shape this is."""
        return family(self.mechanism.describe())


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranked:
    """A table, or a part of one: its noise now, and the best of each family within the limits, the best first.

    `counted`: the numbers of the limits that count its records, and `allowed` what it may lose at each; losses are
    equal at `binding`.
    """

    of: QueryPolicy
    number: int
    counted: Sequence[int]
    binding: int
    allowed: Sequence[Fraction]
    now: Candidate
    best: Sequence[Candidate]
    left_out: Mapping[str, str]

    @property
    def gain(self) -> float | None:
        """The share by which the best one's error is below that of now, 0 where none is; None where that is unknown."""
        if not self.best or not isfinite(self.now.error):
            return None
        return max(0.0, 1 - self.best[0].error / self.now.error)


def ranked(plan: Plan, bounds: Sequence[Bound], asked: Asked, on_try: OnTry = lambda tried: None) -> list[Ranked]:
    """Return the tables in the plan's order; `on_try`(n) is called before the n-th mechanism is sought.

    Raises PlanError where no limit counts a record of a table, or its own error is at a total that is not known.
    """
    search = _Search(policy_of(plan), bounds, asked, on_try)
    return [
        search.of(number)
        for number, each in enumerate(search.policy.queries)
        if each.name != NAME and each.name in asked.tables
    ]


def together(plan: Plan, bounds: Sequence[Bound], tables: Sequence[Ranked]) -> bool:
    """Return whether the plan with the best noise in all tables at once keeps its limits, or breaks none further."""
    before = after = policy_of(plan)
    for each in tables:
        if each.gain != 0 and each.best:
            after = _with(after, each.number, each.best[0].mechanism)
    return all(bound.spent(after) <= max(bound.limit.rho, bound.spent(before)) for bound in bounds)


@dataclass(frozen=True, eq=False)
class _Search:
    policy: PolicySum
    bounds: Sequence[Bound]
    asked: Asked
    on_try: OnTry
    designs: dict[Wish, Design] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)

    @cached_property
    def spent(self) -> list[Fraction]:
        return [bound.spent(self.policy) for bound in self.bounds]

    @cached_property
    def apart(self) -> PolicySum:
        """The policy with the parts of a query as queries of their own."""
        queries = (replace(each, name=each.label) for each in self.policy.queries)
        return replace(self.policy, queries=tuple(queries))

    def of(self, number: int) -> Ranked:
        of = self.policy.queries[number]
        if not of.mechanism.additive and self.asked.total(of) is None:
            raise PlanError(f"query {of.label}: {NO_TOTAL}: give one, or synthetic cells that have some")
        counted = [k for k, bound in enumerate(self.bounds) if number in self.policy.met_at(bound.limit.at)]
        if not counted:
            raise PlanError(f"query {of.label}: no limit counts a record of it; add one to the plan's budget")
        limits = [self.bounds[k].limit.rho for k in counted]
        used = [self.spent[k] / rho if rho else inf for k, rho in zip(counted, limits, strict=True)]
        binding = counted[used.index(max(used))]
        losses = [self._loss(number, k) for k in counted]
        now = self._candidate(number, of.mechanism, losses)
        allowed = [loss if k == binding else loss + self._left(k) for k, loss in zip(counted, now.losses, strict=True)]
        left_out: dict[str, str] = {}
        candidates = self._named(number, losses, allowed, left_out)
        if DESIGNED in self.asked.kinds:
            candidates += self._designed(number, counted, losses, allowed, left_out)
        best: dict[str, Candidate] = {}
        for each in sorted(candidates, key=lambda each: each.error):
            if each.family not in best and self._keeps(number, each.mechanism):
                best[each.family] = each
        kinds = {each.mechanism.kind for each in best.values()}
        return Ranked(
            of=of,
            number=number,
            counted=counted,
            binding=binding,
            allowed=allowed,
            now=now,
            best=list(best.values()),
            left_out={kind: why for kind, why in left_out.items() if kind not in kinds},
        )

    def _left(self, k: int) -> Fraction:
        bound = self.bounds[k]
        tables = {self.policy.queries[i].name for i in self.policy.met_at(bound.limit.at)} - {NAME}
        return max(Fraction(0), bound.limit.rho - self.spent[k]) / (bound.times * len(tables))

    def _candidate(
        self, number: int, mechanism: Mechanism, losses: "Sequence[Loss]", made: Design | None = None
    ) -> Candidate:
        error = self.asked.error(mechanism, self.policy.queries[number])
        return Candidate(mechanism, error, [loss(mechanism) for loss in losses], made)

    def _influence(self, number: int, k: int) -> Fraction | None:
        """Return the influence of the one record of a limit's reference; None where it has several."""
        reference = self.bounds[k].limit.at
        if len(reference.records) > 1:
            return None
        name = self.apart.queries[number].name
        return max(self.apart.influence_at(each, name) for each in self.apart.resolved(reference))

    def _loss(self, number: int, k: int) -> "Loss":
        """Return what a table loses at a limit's reference, as a function of its mechanism."""
        influence = self._influence(number, k)
        if influence is not None:
            return lambda mechanism: mechanism.loss_at(influence)
        reference, name = self.bounds[k].limit.at, self.apart.queries[number].name
        return lambda mechanism: _with(self.apart, number, mechanism).query_loss_at(reference, name)

    def _keeps(self, number: int, mechanism: Mechanism) -> bool:
        changed = _with(self.policy, number, mechanism)
        most = (max(bound.limit.rho, spent) for bound, spent in zip(self.bounds, self.spent, strict=True))
        return all(bound.spent(changed) <= rho for bound, rho in zip(self.bounds, most, strict=True))

    def _named(
        self, number: int, losses: "Sequence[Loss]", allowed: Sequence[Fraction], left_out: dict[str, str]
    ) -> list[Candidate]:
        of = self.policy.queries[number]
        none = f"no such noise within the limits has a finite {self.asked.minimise.replace('_', ' ')}"
        candidates = []
        for kind, shape in shapes():
            if kind not in self.asked.kinds:
                continue
            if CATALOGUE[kind].counts_only and not of.statistic.counts:
                left_out[kind] = "for counts alone"
                continue
            if not CATALOGUE[kind].additive and self.asked.total(of) is None:
                left_out[kind] = NO_TOTAL
                continue
            self._tell(kind)
            try:
                mechanism = _least_noise(kind, shape, of.mechanism.step, losses, allowed)
            except ParameterError as error:
                left_out.setdefault(kind, str(error))
                continue
            if mechanism is not None and isfinite(self.asked.error(mechanism, of)):
                candidates.append(self._candidate(number, mechanism, losses))
            else:
                left_out.setdefault(kind, none)
        return candidates

    def _designed(
        self,
        number: int,
        counted: Sequence[int],
        losses: "Sequence[Loss]",
        allowed: Sequence[Fraction],
        left_out: dict[str, str],
    ) -> list[Candidate]:
        """Return the noise designed for the losses that are allowed, where there is one."""
        limits: list[tuple[Fraction, Fraction]] = []
        pairs = [(self._influence(number, k), exact(down_text(rho))) for k, rho in zip(counted, allowed, strict=True)]
        for influence, most in sorted(((x, -rho) for x, rho in pairs if x is not None), reverse=True):
            if not limits or -most < limits[0][1]:  # else the limit of a larger record binds this one already
                limits = [(influence, -most), *(each for each in limits if each[0] != influence)]
        self._tell(DESIGNED)
        try:
            if any(x is None for x, _ in pairs):
                raise PlanError("for limits of single records alone")
            step = self.policy.queries[number].mechanism.step
            wish = Wish(tuple(limits), self.asked.minimise, step, self.asked.coverage)
            made = self.designs.get(wish) or self.designs.setdefault(wish, design(wish))
        except PlanError as error:
            left_out[DESIGNED] = str(error)
            return []
        return [self._candidate(number, made.mechanism, losses, made)]

    def _tell(self, kind: str) -> None:
        self.tried.append(kind)
        self.on_try(len(self.tried))


Loss = Callable[[Mechanism], Fraction]


def _with(policy: PolicySum, number: int, mechanism: Mechanism) -> PolicySum:
    queries = list(policy.queries)
    queries[number] = replace(queries[number], mechanism=mechanism)
    return replace(policy, queries=tuple(queries))


def _least_noise(
    kind: str, shape: Mapping[str, str], step: Fraction, losses: Sequence[Loss], allowed: Sequence[Fraction]
) -> Mechanism | None:
    """Return the mechanism of least noise whose losses are allowed, its scale of eight digits; None if there is none.

    Raises ParameterError where no mechanism has this shape.
    """
    name = scale_of(CATALOGUE[kind])
    assert name is not None  # every kind of FAMILIES has a scale
    of_kind = Family(kind, name, tuple(sorted(shape.items())), step, may_be_narrow=True)

    def gap(n: int) -> float:
        mechanism = of_kind.at(n)
        if mechanism is None:
            return of_kind.beyond(n)
        lost = [loss(mechanism) for loss in losses]
        return min(log(most / loss) if loss else inf for loss, most in zip(lost, allowed, strict=True))

    def kept(n: int) -> bool:
        mechanism = of_kind.at(n)
        if mechanism is None:
            return of_kind.beyond(n) > 0
        return all(loss(mechanism) <= most for loss, most in zip(losses, allowed, strict=True))

    n = crossing(gap, kept, of_kind.start)
    return None if n is None else of_kind.at(n)
