"""What `prdp explain` tells of changes of a record's values: parsing them, JSON, and words."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pipeline.accounting.change import Change, Factor, change_losses
from pipeline.accounting.reference import policy_of
from pipeline.errors import PlanError
from pipeline.explain import code_typed, loss_words, number_typed
from pipeline.meaning import meaning, words
from pipeline.nearest import nearest
from pipeline.plan.model import Plan
from udfs.codes import LEVELS

OF_CHANGES = (
    "A change is one of the values of a record that is there all the same and stays in its cells: rho and epsilon",
    "bound what the tables tell of which of the two it is; counts tell nothing. best test: between the two values.",
)
UNBOUNDED = "no bound: larger records change by more"


def parse_change(text: str, plan: Plan) -> Change:
    """Return the change that `text` names, such as "employment=10:12,payroll=500:600" or "naics3=722,employment=10:12".

    Raises PlanError on anything that is no measure of the plan with two values, or no level with a code of the domain.
    """
    measures = {measure.name for measure in plan.dataset.measures}
    levels = {level for names in LEVELS.values() for level in names}
    values: dict[str, tuple[Fraction, Fraction]] = {}
    keys: dict[str, str] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = piece.partition("=")
        if name in values or name in keys:
            raise PlanError(f"--change {name}: it is named twice")
        if name in levels:
            keys[name] = code_typed("--change", plan, name, value)
        elif name in measures:
            one, colon, other = value.partition(":")
            if not colon:
                raise PlanError(f"--change {name}: write both values, as in {name}=10:12")
            values[name] = number_typed("--change", name, one), number_typed("--change", name, other)
        else:
            known = nearest(name, measures | levels)
            raise PlanError(f"--change {name}: unknown measure or level; nearest known: {known}")
    if not values:
        raise PlanError(f"--change {text}: name a measure and its two values, as in employment=10:12")
    return Change(values, keys)


def parse_factor(text: str) -> Factor:
    """Return the factor that `text` names; raises PlanError unless it is a number of at least 1."""
    factor = number_typed("--factor", text, text)
    if factor < 1:
        raise PlanError(f"--factor {text}: must be at least 1; it bounds a change up and down")
    return Factor(factor)


def explain_changes(plan: Plan, changes: Sequence[Change | Factor], delta: float) -> list[dict[str, Any]]:
    """Return what each change costs, by query and in all; `rho` null: no bound, `means` (ε, δ) and the best test."""
    policy = policy_of(plan)
    told = []
    for change in changes:
        losses, total = change_losses(plan, policy, change)
        queries = [{"name": query.name} | _told(loss) for query, loss in zip(plan.queries, losses, strict=True)]
        means = None if total is None else meaning(total, delta)
        told.append({"change": change.to_json(), "queries": queries, "total": _told(total), "means": means})
    return told


def _told(loss: Any) -> dict[str, float | None]:
    return {"rho": None, "epsilon": None} if loss is None else loss.to_json()


def render_changes(told: Sequence[dict[str, Any]]) -> str:
    """Return the changes for people."""
    lines = []
    for entry in told:
        lines += ["", f"change: {_named(entry['change'])}"]
        rows = [(query["name"], query) for query in entry["queries"]] + [("total", entry["total"])]
        width = max(len(name) for name, _ in rows)
        lines += [f"    {name:<{width}}   {_words(loss)}" for name, loss in rows]
        if entry["means"] is not None:
            lines[-1] += f"   {words(entry['means'])}"
    return "\n".join([*lines, "", *OF_CHANGES])


def _named(change: dict[str, Any]) -> str:
    if "factor" in change:
        return f"all values of a record, or others within a factor of {change['factor']}"
    return ", ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name} {value[0]} or {value[1]}"
        for name, value in change.items()
    )


def _words(loss: dict[str, Any]) -> str:
    return UNBOUNDED if loss["rho"] is None else loss_words(loss)
