"""prdp ledger show: releases and budgets, or what is spent and left at a reference."""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from jobs.cli import show_json
from pipeline.errors import PlanError
from pipeline.ledger.datasets import Budget
from pipeline.ledger.history import Story, stories
from pipeline.ledger.rows import Diagnosed
from pipeline.ledger.store import Ledger
from udfs.numbers.exact import as_json, down_text, up_text


def show(ledger: Ledger, given: argparse.Namespace) -> None:
    """Show what was asked for, as a table or JSON."""
    if given.at is None:
        _show(ledger, given.release, given.dataset, given.json)
    else:
        _show_spending(ledger, given)


def show_release(ledger: Ledger, release: str, as_json: bool) -> None:
    """Show one release, as after an act on it."""
    _show(ledger, release, None, as_json)


def _show(ledger: Ledger, release: str | None, dataset: str | None, as_json: bool) -> None:
    told = list(stories(ledger.entries(release)).values())
    runs = [run for run in ledger.diagnoses() if release in (None, run.release) and dataset in (None, run.dataset)]
    budgets = [] if release else [b for b in ledger.budgets().values() if dataset in (None, b.name)]
    found = [story for story in told if dataset in (None, story.state.dataset)]
    if as_json:
        show_json([*map(_story_json, found), *map(_run_json, runs), *(budget.to_json() for budget in budgets)])
        return
    if release is not None and not found:
        print(f"release {release}: is not in the ledger")
        return
    _print_table(found)
    for budget in budgets:
        _print_budget(budget)
    for run in runs:
        print(f"{run.release}: confidential diagnostics of {run.dataset} made at {run.time}")
    if release is not None:
        for story in found:
            _print_story(story)


def _story_json(story: Story) -> dict[str, Any]:
    state = story.state
    return {
        "release": state.release,
        "dataset": state.dataset,
        "state": state.status,
        "attempt": state.attempt,
        "draws": state.draws,
        "charges": state.charges,
        "plan_digest": state.digest,
        "out": state.out,
        "supersedes": state.reservation["supersedes"],
        "code": state.reservation["code"],
        "hold": state.hold,
        "approved": state.approved,
        "reason": state.reason,
        "attempts": [attempt.to_json() for attempt in story.attempts],
        "acts": [{"time": time, "event": event, "operator": operator} for time, event, operator in story.acts],
    }


def _run_json(run: Diagnosed) -> dict[str, Any]:
    return {
        "release": run.release,
        "dataset": run.dataset,
        "state": "diagnosed",
        "time": run.time,
        "plan_digest": run.digest,
        "engine": run.engine,
        "per_record": run.per_record,
        "compared": run.compared,
        "operator": run.operator,
    }


def _print_table(found: Sequence[Story]) -> None:
    rows = [("release", "dataset", "state", "draws", "charged", "since", "by")]
    for story in found:
        state, (time, _, operator) = story.state, story.acts[-1]
        status = "held, approved" if state.status == "held" and state.approved else state.status
        row = (state.release, state.dataset, status, state.draws, state.charges, time[:19], operator or "-")
        rows.append(tuple(map(str, row)))  # type: ignore[arg-type]
    print_columns(rows)


def _print_budget(budget: Budget) -> None:
    family = f" of family {budget.family}" if budget.family else ""
    print(f"{budget.kind} {budget.name}{family}, unit {budget.unit}")
    for limit in budget.limits:
        print(f"    {limit.label}: rho {as_json(limit.rho)}")
    if budget.reason:
        print(f"    stated anew: {budget.reason}")


def _print_story(story: Story) -> None:
    print(f"output {story.state.out}")
    for time, event, operator in story.acts:
        print(f"{time[:19]} {event} by {operator or '-'}")
    for attempt in story.attempts:
        staged = attempt.staging or "beside the ledger"
        print(f"attempt {attempt.attempt}, draw {attempt.draw}: {attempt.stage}, staged {staged}")
    if story.state.reason:
        print(f"reason: {story.state.reason}")


def _show_spending(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.ledger.history import spendings  # noqa: PLC0415

    dataset = given.dataset
    if given.release is not None:
        state = ledger.state(given.release)
        if state is None:
            raise PlanError(f"release {given.release}: is not in the ledger: prdp ledger show names those that are")
        dataset = state.dataset
    found = spendings(ledger, given.at, dataset)
    if given.json:
        show_json([spending.to_json() for spending in found])
        return
    for spending in found:
        print(f"dataset {spending.dataset}, at {spending.label}")
        rows = [("    release", "state", "charged", "rho")]
        rows += [(f"    {s.release}", s.status, str(s.charges), up_text(loss)) for s, loss in spending.spent]
        print_columns([*rows, ("    spent", "", "", up_text(spending.total))])
        means = spending.means
        epsilon = "infinite" if means["epsilon"] is None else up_text(Fraction(means["epsilon"]))
        test = f"best test {means['power']:.4f} at {means['size']:g}"
        print(f"    which implies (ε, δ) = ({epsilon}, {means['delta']:g}); {test}")
        if spending.limit is None or spending.left is None:
            print("    no limit binds it: its loss may grow without end")
        else:
            by = f"{as_json(spending.limit.rho)} at {spending.limit.label}"
            print(f"    left {down_text(spending.left)}, by the limit {by}")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
