"""What a plan promises, before any record is read: the losses of reference records, for people and as JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from pipeline.accounting.convert import DELTA
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.plan.model import Part, Plan, Query
from pipeline.plan.policy import (
    Change,
    Factor,
    Loss,
    change_losses,
    curve_at,
    losses_at,
    policy_of,
    simple_losses_at,
)
from pipeline.report.accuracy import accuracy, warnings
from pipeline.report.losses import (
    OF_POSTERIORS,
    OF_TESTS,
    group_losses,
    meaning,
    paper_losses,
    posterior_table,
    table,
    tight_queries,
    words,
)
from udfs.numbers.exact import as_json, up_float, up_text

OF_RECORDS = (
    "rho is the per-record zCDP loss, epsilon the pure one (- where there is none). Both are upper bounds, and",
    "bind every record whose values are in magnitude at most the reference's; a larger one loses more, without limit.",
)
OF_FIRMS = (
    "rho is the zCDP loss of a whole firm, epsilon the pure one (- where there is none). Both are upper bounds, and",
    "bind every firm whose records can be matched one to one with records of the reference that are at least as",
    "large, in the places that these name; a firm with more or larger records loses more, without a limit.",
)

OF_GROUPS = (
    "Several records together lose at most rho, by the tight group bound (Σ√P)²; the simple one is J·ΣP for J records.",
)
OF_COUNTS = (
    "in a cell of n records: rho of one of them, where larger groups lose less. The count of an actual cell is",
    "confidential, and so is this loss: it must not be published cell by cell.",
)


def explain(plan: Plan, references: Sequence[Reference], delta: float = DELTA) -> dict[str, Any]:
    """Return what the plan promises at `references` (none given: those of its budget); (ε, δ) is stated for `delta`."""
    policy = policy_of(plan)
    wanted = list(references) or [limit.at for limit in plan.budget] or _anywhere(plan, policy.measures)
    promised = [(at, *losses_at(plan, policy, at), _simple(plan, policy, at)) for at in wanted]
    queries = [
        {
            "name": query.name,
            "mechanism": query.described(),
            "losses": [_told(at, each[i][1], simple[i], influence=each[i][0]) for at, each, _, simple in promised],
            "accuracy": accuracy(query, plan.interval),
            "warnings": warnings(query),
        }
        | ({"groups": groups} if (groups := group_losses(query)) else {})
        for i, query in enumerate(plan.queries)
    ]
    total = [_told(at, loss, simple[-1]) for at, _, loss, simple in promised]
    means = [meaning(loss, delta, curve_at(plan, policy, at)) for at, _, loss, _ in promised]
    told = {"plan_digest": plan.digest, "unit": plan.dataset.unit, "queries": queries, "total": total}
    paper = paper_losses(plan, wanted)
    return told | {"total_means": means} | ({"paper": paper} if paper else {})


def _simple(plan: Plan, policy: PolicySum, at: Reference) -> Sequence[Fraction | None]:
    """Return the simple group bounds of a group of records that are units of their own, else None for each."""
    if at.listed and plan.dataset.owner is None:
        return simple_losses_at(plan, policy, at)
    return [None] * (len(plan.queries) + 1)


def _told(at: Reference, loss: Loss, simple: Fraction | None, influence: Fraction | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"at": at.to_json()}
    told |= {} if influence is None else {"influence": as_json(influence)}
    told |= loss.to_json()
    return told | ({} if simple is None else {"rho_simple": up_float(simple)})


def render(explained: dict[str, Any], plan: Plan) -> str:
    """Return the explanation for people."""
    lines = [
        f"release  {plan.release}   dataset {plan.dataset.name}   protected unit: {_unit(plan)}",
        f"plan     {explained['plan_digest']}",
        "",
    ]
    paper, tight = explained.get("paper", ()), tight_queries(plan)
    for entry, query in zip(explained["queries"], plan.queries, strict=True):
        lines.append(f"{entry['name']}: {query.statistic.label} by {' × '.join(query.by)}{_where(query.where)}")
        for part in query.parts:
            lines.append(f"    {_part(query, part)}{in_words(part.mechanism.describe())}")
            lines.append(f"        P(Δ) = {part.mechanism.formula}")
        lines += _table(entry["losses"], [at["queries"][query.name] for at in paper] if query.name in tight else ())
        lines += _groups(entry.get("groups", ()))
        lines += error_lines(entry["accuracy"], plan.interval)
        lines.append("")
    who = "a record of these values" if plan.dataset.owner is None else "a firm of these records"
    lines.append(f"total: the most that {who} loses in this release, wherever it is")
    lines += _totals(explained["total"], explained["total_means"])
    lines += posterior_table(_places(explained["total"]), explained["total_means"])
    if not explained["total"]:
        lines.append("    (no reference: give --at, for instance --at employment=10)")
    lines += ["", *table(plan), "", *(OF_RECORDS if plan.dataset.owner is None else OF_FIRMS)]
    lines += OF_TESTS
    lines += OF_POSTERIORS
    if any("rho_simple" in loss for loss in explained["total"]):
        lines += OF_GROUPS
    if any("groups" in entry for entry in explained["queries"]):
        lines += OF_COUNTS
    lines += [f"warning: {text}" for entry in explained["queries"] for text in entry["warnings"]]
    return "\n".join(lines)


def _unit(plan: Plan) -> str:
    owner = plan.dataset.owner
    return plan.dataset.unit if owner is None else f"a firm, all records with one value of {owner}"


def _anywhere(plan: Plan, measures: Iterable[str]) -> list[Reference]:
    if list(measures):
        return []
    return [Reference.of({}, listed=plan.dataset.owner is not None)]


def _where(where: Any) -> str:
    return "".join(f", {level} in {{{', '.join(codes)}}}" for level, codes in where.items())


def _part(query: Query, part: Part) -> str:
    return "" if query.split is None else f"{query.split} {part.name}: "


def in_words(described: dict[str, Any]) -> str:
    """Return a mechanism's kind and parameters for people."""
    parameters = ", ".join(f"{name} {value}" for name, value in described.items() if name != "kind")
    return f"{described['kind']} ({parameters})"


def _up(bound: float) -> str:
    return up_text(Fraction(bound))


def _groups(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each part, of the losses in groups of some sizes."""
    found: dict[str, list[str]] = {}
    for entry in groups:
        found.setdefault(entry.get("part", ""), []).append(f"{entry['count']:,}: {up_text(Fraction(entry['rho']), 4)}")
    return [f"    {part + ', ' if part else ''}in a cell of n records   {'   '.join(of)}" for part, of in found.items()]


def error_lines(accuracy: Sequence[dict[str, Any]], interval: Fraction) -> list[str]:
    """Return the errors at some totals in aligned columns; those of additive noise are the same at all totals."""
    heads = ("", "standard error", "mean error", f"{float(100 * interval):.4g} % interval, were the noise 0")
    totals = Counter(entry.get("part") for entry in accuracy)
    rows = [_error_row(entry, alone=totals[entry.get("part")] == 1) for entry in accuracy]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("   ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)) for row in (heads, *rows))
    return [f"    {line}".rstrip() for line in lines]


def _error_row(entry: dict[str, Any], *, alone: bool) -> tuple[str, str, str, str]:
    part = f"{entry['part']}, " if "part" in entry else ""
    standard, mean = (
        "infinite" if entry[error] is None else f"{entry[error]:,.6g}"
        for error in ("standard_error", "mean_absolute_error")
    )
    if alone:
        return f"{part}any total", standard, mean, f"total ± {entry['upper']:,.6g}"
    return f"{part}total {entry['total']:,.0f}", standard, mean, f"{entry['lower']:,.6g} to {entry['upper']:,.6g}"


def _place(at: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in at.items()) or "any record"


def _places(losses: Sequence[dict[str, Any]]) -> list[str]:
    return ["; ".join(map(_place, loss["at"] if isinstance(loss["at"], list) else [loss["at"]])) for loss in losses]


def _table(losses: Sequence[dict[str, Any]], paper: Sequence[float] = ()) -> list[str]:
    """Return a line for each loss; `paper`: rho of the same noise by the paper's policy, where another is stated."""
    shown = _places(losses)
    width = max(map(len, shown), default=0)
    beside = [f"   (paper's bound: rho {_up(rho)})" for rho in paper] or [""] * len(losses)
    rows = zip(shown, losses, beside, strict=True)
    return [f"    {at:<{width}}   {loss_words(loss)}{other}" for at, loss, other in rows]


def _totals(losses: Sequence[dict[str, Any]], meanings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of total losses, each with what it means to people."""
    lines = _table(losses)
    width = max(map(len, lines), default=0)
    return [f"{line:<{width}}   {words(meaning)}" for line, meaning in zip(lines, meanings, strict=True)]


def loss_words(loss: dict[str, Any]) -> str:
    """Return a loss, as JSON, in words."""
    epsilon = "-" if loss["epsilon"] is None else _up(loss["epsilon"])
    simple = f"   simple group bound {_up(loss['rho_simple'])}" if "rho_simple" in loss else ""
    return f"rho {_up(loss['rho']):<12} epsilon {epsilon}{simple}"


# What `prdp explain` tells of changes of a record's values: parsing them, JSON, and words.


OF_CHANGES = (
    "A change is one of the values of a record that is there all the same and stays in its cells: rho and epsilon",
    "bound what the tables tell of which of the two it is; counts tell nothing. best test: between the two values.",
)
UNBOUNDED = "no bound: larger records change by more"


def explain_changes(plan: Plan, changes: Sequence[Change | Factor], delta: float) -> list[dict[str, Any]]:
    """Return what each change costs, by query and in all; `rho` null: no bound, `means` (ε, δ) and the best test."""
    policy = policy_of(plan)
    told = []
    for change in changes:
        losses, total = change_losses(plan, policy, change)
        queries = [{"name": query.name} | _told_change(loss) for query, loss in zip(plan.queries, losses, strict=True)]
        means = None if total is None else meaning(total, delta)
        told.append({"change": change.to_json(), "queries": queries, "total": _told_change(total), "means": means})
    return told


def _told_change(loss: Any) -> dict[str, float | None]:
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
