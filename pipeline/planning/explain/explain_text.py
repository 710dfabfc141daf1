"""An explanation for people, in detail: what `prdp explain --detail` prints after the verdict."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipeline.accounting.interpretation import NOTES, interpretation_text, posterior_lines, unknown_lines
from pipeline.accounting.left_out import NAME
from pipeline.base.columns import aligned, excess_text, loss_text, mechanism_text, reference_text, wrapped
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import left_out_test_of
from pipeline.planning.explain.policies import loss_lines, tight_queries
from pipeline.publication.policy_document import composition
from udfs.numbers.exact import bound_text

OF_RECORDS = (
    "rho is the per-record zCDP loss, epsilon the pure one (- where there is none). Both are upper bounds, and "
    "bind every record whose values are in magnitude at most the reference's; a larger one may lose more, without "
    "limit.",
    "too high by: how far rho may lie above what the noise itself loses, at most; certified from below.",
)
OF_CLASSES = (
    "rho is the zCDP loss of a record or firm of these very values, epsilon the pure one (- where there is none), both "
    "upper bounds. Classes of a measure have cells or noise of their own, so that a smaller one may lose more.",
    "all no larger: the most that any record or firm loses none of whose values is larger, in any class, where that is "
    "not the reference's own loss; limits are against it.",
)
OF_FIRMS = (
    "rho is the zCDP loss of a firm, epsilon the pure one (- where there is none). Both are upper bounds, and "
    "bind every firm whose records can be matched one to one with records of the reference that are at least as "
    "large, in the cells that these name; a firm with more or larger records may lose more, without a limit.",
)
OF_GROUPS = ("Several records together lose at most rho, wherever they lie; the simple bound is J·ΣP for J records.",)
OF_PLACEMENTS = (
    "at most … times the true one: rho over what a placement of the records loses that was found in the domain.",
)
OF_COUNTS = (
    "in a cell of n records: rho of one of them, where larger groups lose less. The count of an actual cell is "
    "confidential, and so is this loss: it must not be published cell by cell.",
)
OF_CHANGES = (
    "A change: rho and epsilon bound the loss from distinguishing two values of a record that is known to be there and "
    "to stay in its codes; counts add nothing. Into another class it moves between cells, and loses P(x) + P(x′).",
    "best test: between the two values.",
)
UNBOUNDED = "no bound: larger records change by more, or into classes of which a value is not named"

Json = Mapping[str, Any]


def render(explained: Json, plan: Plan) -> str:
    """Return all that a plan promises, but for the verdict, for people."""
    owner = plan.dataset.owner
    lines = [
        f"plan     {explained['plan_digest']}",
        f"size     {_size(explained['size'])}",
        "",
    ]
    paper, tight = explained.get("paper", ()), tight_queries(plan)
    for entry, query in zip(explained["queries"], plan.queries, strict=True):
        where = "".join(f", {level} in {{{', '.join(codes)}}}" for level, codes in query.where.items())
        lines.append(f"{entry['name']}: {query.statistic.label} by {' × '.join(query.by)}{where}")
        for part in query.parts:
            name = "" if query.split is None else f"{query.split} {part.name}: "
            lines.append(f"    {name}{mechanism_text(part.mechanism.describe())}")
            lines.append(f"        P(Δ) = {part.mechanism.formula}")
        bounds = [f"   (paper's bound: rho {bound_text(at['queries'][query.name])})" for at in paper]
        beside = bounds if query.name in tight else [""] * len(entry["losses"])
        above = aligned([[excess_text(share)] for share in entry["excess"]]) if entry["excess"] else []
        lines += _losses(entry["losses"], [a.strip() + b for a, b in zip(above, beside, strict=True)])
        lines += _groups(entry.get("groups", ()))
        lines += [*error_lines(entry["accuracy"], plan.interval), ""]
    test = explained["left_out_test"]
    noise = f"{left_out_test_of(plan).noise} noise of scale {test['sigma']:g} on two counts"
    lines.append(f"{NAME}: refused beyond a share of {test['share']:g}; {noise}")
    lines += [*_losses(test["losses"], []), ""]
    reference = "a record of these values" if owner is None else "a firm of these records"
    totals = explained["total"]
    lines.append(f"total: the most that {reference} loses in this release, wherever it is")
    rows = [row for loss, means in zip(totals, explained["total_means"], strict=True) for row in _total(loss, means)]
    names, interpreted = [name for name, _, _ in rows], [means for _, _, means in rows]
    lines += aligned([[name, loss_text(loss), interpretation_text(means)] for name, loss, means in rows])
    lines += posterior_lines(names, interpreted)
    if not totals:
        lines.append("    (no reference: give --at, for instance --at employment=10)")
    classes = len(rows) > len(totals)
    stated = (*OF_CLASSES, *OF_RECORDS[1:]) if classes else OF_RECORDS if owner is None else OF_FIRMS
    lines += ["", *loss_lines(plan), "", *stated, *NOTES]
    lines += unknown_lines(names, interpreted)
    if any("rho_simple" in loss for loss in totals):
        lines += OF_GROUPS
    if any("rho_found" in loss for loss in totals):
        lines += OF_PLACEMENTS
    if any("groups" in entry for entry in explained["queries"]):
        lines += OF_COUNTS
    lines.append(composition(plan))
    lines += [f"warning: {text}" for entry in explained["queries"] for text in entry["warnings"]]
    return "\n".join(part for line in lines for part in wrapped(line))


def _size(size: Json) -> str:
    memory = f"{size['gibibytes']:.2g} GiB" if size["gibibytes"] >= 0.05 else "little memory"
    return f"{size['cells']:,} cells in {size['tables']:,} tables, from {size['sums']:,} sums of records: {memory}"


def render_changes(explained: Sequence[Json]) -> str:
    """Return the changes for people."""
    lines = []
    for entry in explained:
        lines += ["", f"change: {_change(entry['change'])}"]
        losses = {query["name"]: query for query in entry["queries"]} | {"total": entry["total"]}
        texts = {name: UNBOUNDED if loss["rho"] is None else loss_text(loss) for name, loss in losses.items()}
        if entry["means"] is not None:
            texts["total"] += f"   {interpretation_text(entry['means'])}"
        lines += aligned([*texts.items()])
    return "\n".join(part for line in (*lines, "", *OF_CHANGES) for part in wrapped(line))


def error_lines(accuracy: Sequence[Json], interval: Fraction) -> list[str]:
    """Return the errors at some totals in aligned columns; those of additive noise are the same at all totals."""
    totals = Counter(entry.get("part") for entry in accuracy)
    rows = [["", "standard error", "mean error", f"{float(100 * interval):.4g} % interval at noise 0"]]
    for entry in accuracy:
        part = f"{entry['part']}, " if "part" in entry else ""
        errors = [entry["standard_error"], entry["mean_absolute_error"]]
        total, bounds = f"total {entry['total']:,.0f}", f"{entry['lower']:,.6g} to {entry['upper']:,.6g}"
        if totals[entry.get("part")] == 1:
            total, bounds = "any total", f"total ± {entry['upper']:,.6g}"
        rows.append(
            [part + total, *("infinite" if error is None else f"{error:,.6g}" for error in errors), bounds],
        )
    return aligned(rows)


def _losses(losses: Sequence[Json], beside: Sequence[str]) -> list[str]:
    """Return a line for each loss, with a text beside each, if any."""
    rows = [[reference_text(loss["at"]), loss_text(loss)] for loss in losses]
    return aligned([[*row, text] for row, text in zip(rows, beside or [""] * len(rows), strict=True)]) if rows else []


def _total(loss: Json, means: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield a name, a loss and what it means: of a reference, then of all no larger, where that is another bound."""
    name = reference_text(loss["at"])
    yield name, loss, means
    if "below" in means:
        yield f"all no larger than {name}", {kind: loss[f"{kind}_below"] for kind in ("rho", "epsilon")}, means["below"]


def _groups(groups: Sequence[Json]) -> list[str]:
    """Return a line for each part, of the losses in groups of some sizes."""
    parts: dict[str, list[str]] = {}
    for entry in groups:
        loss = f"{entry['count']:,}: {bound_text(entry['rho'], 4)}"
        parts.setdefault(entry.get("part", ""), []).append(loss)
    return [
        f"    {part + ', ' if part else ''}in a cell of n records   {'   '.join(texts)}"
        for part, texts in parts.items()
    ]


def _change(change: Json) -> str:
    if "factor" in change:
        return f"all values of a record, or others within a factor of {change['factor']}"
    return ", ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name} {value[0]} or {value[1]}"
        for name, value in change.items()
    )
