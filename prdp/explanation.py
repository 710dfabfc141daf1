"""What a plan promises, as pandas tables: losses by query, total losses, accuracy, and what changes of values cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import PlanError, arg
from pipeline.base.plain import reference_text as reference_words
from pipeline.plan.model import Plan
from pipeline.plan.plan_losses import parse_change, parse_factor
from pipeline.plan.total_policy import parse_at
from pipeline.planning.explain_text import render, render_changes, render_verdict, render_years
from pipeline.planning.explanation import explain, explain_changes, explain_years, plot_policies
from pipeline.planning.verdict import Standing, Verdict, verdict
from pipeline.release.installation import site
from prdp.declared import Change, Reference, Value, frame, table
from udfs.numbers.exact import exact, up_float

if TYPE_CHECKING:
    import pandas as pd

MOST_YEARS = 100
GROWTH = Fraction(1, 20)  # a year, where none is given


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a plan promises at reference records; all losses are upper bounds, and no microdata were read.

    `verdict`, `shares`, `errors`, `losses`, `totals`, `accuracy` and `changes` are pandas DataFrames, `to_json()` is
    what `prdp explain --json` prints, `str()` what `prdp explain` prints, `detail()` what `--detail` adds.
    """

    _plan: Plan
    _references: Sequence[Any]
    _judged: Verdict
    _changes: Sequence[Any]
    _delta: float
    _years: int | None = None
    _growth: Fraction = Fraction(0)

    @cached_property
    def _explained(self) -> Mapping[str, Any]:
        explained = explain(self._plan, self._references, self._delta, site().max_left_out)
        more: dict[str, Any] = {"changes": self._changed} if self._changes else {}
        return explained | more | ({} if self._years is None else {"years": self._of_years})

    @cached_property
    def _of_years(self) -> list[dict[str, Any]]:
        years = self._years or 1
        return explain_years(self._plan, self._references, years, self._growth, site().max_left_out)

    @property
    def years(self) -> "pd.DataFrame":
        """What a release like the plan's in each of several years costs, one row a reference.

        Columns: at, years, growth, rho_a_year, rho_same (of units that are in each year no larger than the reference),
        rho_growing (of those whose values grow by at most `growth` a year); empty where no years were asked for.
        """
        rows = [] if self._years is None else self._of_years
        rhos = dict.fromkeys(("growth", "rho_a_year", "rho_same", "rho_growing"), "float")
        return frame(rows, at="reference", years="int64", **rhos)

    @cached_property
    def _changed(self) -> list[dict[str, Any]]:
        return explain_changes(self._plan, self._changes, self._delta)

    @property
    def within_limits(self) -> bool | None:
        """Whether the plan keeps all its limits, by this release alone; None where it has none.

        Limits bind all releases of a dataset together: `Plan.check` asks a ledger.
        """
        return self._judged.within

    @property
    def verdict(self) -> "pd.DataFrame":
        """The most that a record or firm no larger than each reference loses: columns at, rho, limit, used, within.

        The plan's limits come first, then the references that were asked for, without a limit (NaN, within None).
        `used` is rho over the limit, rounded up.
        """
        rows = [(reference_words(each.at.to_json()), *_standing(each)) for each in self._judged.standings]
        return table(rows, at="str", rho="float", limit="float", used="float", within="object")

    @property
    def shares(self) -> "pd.DataFrame":
        """Each table's loss as a share of the total at each reference, largest first: columns at, query, share.

        Each is the loss in the table's worst part: where a record cannot be in all tables they add up to more than 1.
        """
        rows = [
            (reference_words(each.at.to_json()), query, share)
            for each in self._judged.standings
            for query, share in each.shares.items()
        ]
        return table(rows, at="str", query="str", share="float")

    @property
    def errors(self) -> "pd.DataFrame":
        """Errors to expect in a small, a middle and a large cell of each table, or of each part of it.

        Columns: query, part, total, median_relative_error (half of all errors are below this share of the total),
        standard_error (in the measure's unit) and reconciled, what it is once tables add up, as the lattice of their
        levels estimates it (docs/reconcile.md); infinite where null in JSON.
        """
        rows = [error | {"query": name} for name, errors in self._judged.errors for error in errors]
        names = ("total", "median_relative_error", "standard_error", "reconciled")
        return frame(rows, query="str", part="object", **dict.fromkeys(names, "infinite"))

    @property
    def remedies(self) -> list[dict[str, Any]]:
        """What would mend a broken limit, as JSON: a larger scale of one table, and one factor for all of them."""
        return [remedy.to_json() for remedy in self._judged.remedies]

    @property
    def plan_digest(self) -> str:
        """The plan's digest, "sha256:…"."""
        return str(self._explained["plan_digest"])

    @property
    def losses(self) -> "pd.DataFrame":
        """The loss of each reference in each query: columns query, at, influence, rho (zCDP), epsilon (pure, or NaN).

        The influence is in units of the query's measure; 1 for a count.
        """
        numbers = {"influence": "float", "rho": "float", "epsilon": "float"}
        return frame(self._explained["queries"], "losses", query="str name", at="reference", **numbers)

    @property
    def excess(self) -> "pd.DataFrame":
        """How far above the true loss of its noise each mechanism's rho may lie: columns query, at, excess.

        A share, at most: 0.01 is one per cent; NaN where it is not known (docs/tight.md, section 10).
        """
        rows = [
            (query["name"], reference_words(loss["at"]), share)
            for query in self._explained["queries"]
            for loss, share in zip(query["losses"], query["excess"], strict=True)
        ]
        return table(rows, query="str", at="str", excess="float")

    @property
    def totals(self) -> "pd.DataFrame":
        """The loss of each reference in the whole release, and what it implies.

        Columns: at, rho, epsilon (pure, or NaN); epsilon_at_delta and delta: an (ε, δ) that the loss implies; power
        and size: of the best test whether the reference is in the microdata.
        """
        both = zip(self._explained["total"], self._explained["total_means"], strict=True)
        rows = [{**means, "epsilon_at_delta": means.get("epsilon"), **loss} for loss, means in both]
        numbers = ("rho", "epsilon", "epsilon_at_delta", "delta", "power", "size")
        return frame(rows, at="reference", **dict.fromkeys(numbers, "float"))

    @property
    def accuracy(self) -> "pd.DataFrame":
        """The errors of a released value at some true totals, in the measure's unit (infinite where null in JSON).

        Columns: query, part (of a split mechanism, else None), total, standard_error, mean_absolute_error, lower and
        upper (the interval around the total), and reconciled, as in `errors`. Additive noise has the same errors at all
        totals: it has one row.
        """
        names = ("total", "standard_error", "mean_absolute_error", "lower", "upper", "reconciled")
        columns = dict.fromkeys(names, "infinite")
        return frame(self._explained["queries"], "accuracy", query="str name", part="object", **columns)

    @property
    def changes(self) -> "pd.DataFrame":
        """The loss from distinguishing values of a record: columns change, query ("total" for all), rho, epsilon.

        Without a bound rho is NaN.
        """
        rows = [
            (_change_label(entry["change"]), name, loss["rho"], loss["epsilon"])
            for entry in self._explained.get("changes", ())
            for name, loss in [*((query["name"], query) for query in entry["queries"]), ("total", entry["total"])]
        ]
        return table(rows, change="str", query="str", rho="float", epsilon="float")

    @property
    def warnings(self) -> list[str]:
        """A line for each mechanism whose stated errors are not those of the released values."""
        return [text for query in self._explained["queries"] for text in query["warnings"]]

    def to_json(self) -> dict[str, Any]:
        """Return what `prdp explain --json` prints."""
        return {"verdict": self._judged.to_json()} | dict(self._explained)

    def detail(self) -> str:
        """Return what `prdp explain --detail` prints after the verdict: policy functions, curves, losses and errors."""
        return render(dict(self._explained), self._plan)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, detail: bool = False) -> str:
        """Return what `prdp explain` prints, with `--detail` or without."""
        texts = [render_verdict(self._judged), *(["", self.detail()] if detail else [])]
        texts += [render_changes(self._changed)] if self._changes else []
        return "\n".join([*texts, *([] if self._years is None else [render_years(self._of_years, self._plan)])])

    def plot(self, file: str | Path) -> None:
        """Draw the plan's policy functions into an SVG or PNG file."""
        plot_policies(self._plan, Path(file))

    def require_within(self) -> None:
        """Raise BudgetRefused where the plan breaks a limit of its own."""
        self._judged.require_within()

    def __repr__(self) -> str:
        within = {True: "within its limits", False: "breaks its limits", None: "without limits"}[self.within_limits]
        return f"<prdp.Explanation of {self._plan.release}: {within}>"

    def _repr_html_(self) -> str:
        parts = [("Limits", self.verdict), ("Total loss of a reference", self.totals), ("Loss by query", self.losses)]
        parts += [("Accuracy", self.accuracy)]
        parts += [("Changes of values", self.changes)] if "changes" in self._explained else []
        body = "".join(f"<h4>{title}</h4>{table.to_html(index=False, border=0)}" for title, table in parts)
        return f"<div><p>Plan {self.plan_digest}</p>{body}</div>"


def explanation(
    plan: Plan,
    at: Reference | list[Reference] | None = None,
    *,
    change: Change | list[Change] | None = None,
    factor: Value | list[Value] | None = None,
    delta: float | None = None,
    years: int | None = None,
    growth: Value | None = None,
) -> Explanation:
    """Return what a plan promises, as `Plan.explain` describes."""
    if years is None and growth is not None:
        raise PlanError(f"{arg('growth')}: goes with {arg('years')}")
    if years is not None and not 1 <= years <= MOST_YEARS:
        raise PlanError(f"{arg('years', years)}: must be a whole number from 1 to {MOST_YEARS}")
    try:
        rate = GROWTH if growth is None else exact(_number_text(growth))
    except ValueError:
        rate = Fraction(-1)
    if not 0 <= rate <= 1:
        raise PlanError(f"{arg('growth', growth)}: must be a share from 0 to 1, such as 0.05 for 5 % a year")
    references = [parse_at(reference_text(each), plan) for each in _listed(at)]
    changes = [parse_change(_change_text(each), plan) for each in _listed(change)]
    factors = [parse_factor(_number_text(each)) for each in _listed(factor)]
    stated = 1e-9 if delta is None else delta  # that of pipeline.accounting.convert, which loads SciPy
    judged = verdict(plan, references)
    return Explanation(plan, references, judged, [*changes, *factors], stated, years, rate)


def reference_text(at: Reference) -> str:
    """Return a reference as `prdp explain --at` takes it.

    Examples:
        >>> reference_text({"employment": 10, "naics3": "722"})
        'employment=10,naics3=722'
        >>> reference_text(({"employment": 1}, {"employment": 2.5}))
        'employment=1;employment=2.5'
    """
    if isinstance(at, str):
        return at
    if isinstance(at, Mapping):
        return ",".join(f"{name}={_number_text(value)}" for name, value in at.items())
    return ";".join(reference_text(record) for record in at)


def _standing(each: Standing) -> tuple[float, float | None, float | None, bool | None]:
    return up_float(each.rho), None if each.limit is None else float(each.limit), each.used, each.within


def _change_text(change: Change) -> str:
    if isinstance(change, str):
        return change
    pieces = {name: (value,) if isinstance(value, str) else value for name, value in change.items()}
    return ",".join(f"{name}={':'.join(map(_number_text, values))}" for name, values in pieces.items())


def _change_label(change: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {' or '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in change.items()
    )


def _number_text(value: Value | str) -> str:
    if isinstance(value, Fraction):
        value = int(value) if value.denominator == 1 else float(value)
    return str(value)


def _listed(value: Any) -> Sequence[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
