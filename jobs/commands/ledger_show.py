"""prdp ledger show: releases, and the loss spent and left by their limits, or at a reference."""

import argparse
import csv
import sys
from collections.abc import Collection, Sequence
from typing import Any

from jobs.commands import print_columns, print_json, put, say
from pipeline.base.errors import PlanError, arg
from pipeline.base.plain import WIDTH, excess_text, fitted, gap_text
from pipeline.ledger.admission import Account
from pipeline.ledger.datasets import REFUSALS, Budget
from pipeline.ledger.entries import CHECKED, Diagnosed, unknown
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.reading import History, approval_lines, histories
from pipeline.ledger.spending import DIGITS, Lost, Spending, lost, spendings
from pipeline.ledger.store import Ledger
from pipeline.ledger.summaries import Row
from udfs.numbers.exact import as_json, bound_text, down_text


def show(ledger: Ledger, arguments: argparse.Namespace) -> None:
    """Show releases with what is spent and left by their limits, or with --at at a reference, as a table or JSON."""
    release, dataset = arguments.release, arguments.dataset
    if release is not None and dataset is None and ledger.state(release) is None:
        known = {*ledger.budgets(), *(state.dataset for state in ledger.states())}
        release, dataset = (None, release) if release in known else (release, None)
    if arguments.csv and (arguments.at is None or arguments.json):
        raise PlanError(f"{arg('csv')}: it goes with {arg('at')}, and without {arg('json')}")
    if arguments.at is None:
        _show(ledger, release, dataset, arguments.json)
        return
    spent = _spent(ledger, arguments.at, release, dataset)
    if arguments.json:
        print_json([spending.to_json() for spending in spent])
    elif arguments.csv:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerows([Lost._fields, *((*each.values[:6], *each.losses(DIGITS)) for each in lost(spent))])
    else:
        _print_lost(lost(spent))
        for spending in spent:
            _print_spending(spending)


def show_release(ledger: Ledger, release: str, json: bool) -> None:
    """Show one release, as after an act on it."""
    _show(ledger, release, None, json)


def _show(ledger: Ledger, release: str | None, dataset: str | None, json: bool) -> None:
    every = histories(ledger.entries(release)).values() if json or release else ()
    rows, spending = ([], []) if release else ledger.overview()
    wanted = {dataset, *(a.name for a in spending if a.family is not None and a.family.name == dataset)}
    everything = dataset is None
    chosen = [history for history in every if everything or history.state.dataset in wanted]
    lines = [(name, _line(row, row.time, row.operator)) for name, row in rows if everything or name in wanted]
    if release:
        lines = [(s.dataset, _line(s, time, by)) for s, (time, _, by) in ((h.state, h.acts[-1]) for h in chosen)]
    runs = [
        run for run in ledger.diagnoses() if release in (None, run.release) and (everything or run.dataset in wanted)
    ]
    known = {} if release else ledger.budgets()
    budgets = [budget for budget in known.values() if everything or budget.name in wanted]
    closed = None if release else ledger.closed()
    if not (lines or runs or budgets or (closed and everything)):
        _require_known(ledger, release, dataset)
    kept = [each for each in spending if everything or each.name in wanted]
    counted = {} if release else {name: n for name, n in ledger.refusals().items() if everything or name in wanted}
    refusals = [_refusals_json(name, n, known.get(name)) for name, n in counted.items()]
    if json:
        shut = [{"state": "closed", "since": closed.time, "reason": closed.facts["reason"]}] if closed else []
        stated = (budget.to_json() for budget in budgets)
        documents = (*(history.to_json() for history in chosen), *map(_run_json, runs), *stated, *refusals)
        print_json([*documents, *(account.to_json() for account in kept), *shut])
        return
    if not release and (required := ledger.required()) is not None:
        say(f"every release is held, and takes {required.words}")
    if closed:
        say(f"closed since {closed.time[:10]}: {closed.facts['reason']}; prdp ledger admin reopen opens it")
    by_name = {account.name: account for account in kept}
    of_name: dict[str, list[tuple[str, ...]]] = {name: [] for name in by_name}
    for name, line in lines:
        of_name.setdefault(name, []).append(line)
    for name, mine in of_name.items():
        _print_account(name, by_name.get(name), mine, shown=by_name)
    for each in refusals:
        say(f"{each['dataset']}: {each['counted']} of {each['allowed']} refusals because of records")
    for run in runs:
        what = "check of the microdata" if run.event == CHECKED else "diagnostics"
        say(f"{run.release}: confidential {what} of {run.dataset} made at {run.time}")
    if release is not None:
        for history in chosen:
            _print_history(history)


def _require_known(ledger: Ledger, release: str | None, dataset: str | None) -> None:
    """Raise StateError where the ledger holds no release and no dataset of these names, or the two not together."""
    states = ledger.states()
    named = {"release": (release, [s.release for s in states if dataset in (None, s.dataset)])}
    named["dataset"] = (dataset, [*ledger.budgets(), *(state.dataset for state in states)])
    for kind in ("dataset", "release"):
        name, known = named[kind]
        if name is not None and name not in known:
            raise unknown(kind, name, known)


def _refusals_json(dataset: str, counted: int, budget: Budget | None) -> dict[str, Any]:
    allowed = REFUSALS if budget is None else budget.refusals
    return {"dataset": dataset, "state": "refusals", "counted": counted, "allowed": allowed}


def _run_json(run: Diagnosed) -> dict[str, Any]:
    return {
        "release": run.release,
        "dataset": run.dataset,
        "state": run.event,
        "time": run.time,
        "plan_digest": run.digest,
        "engine": run.engine,
        "per_record": run.per_record,
        "compared": run.compared,
        "operator": run.operator,
    }


def _line(state: ReleaseState | Row, time: str, operator: str | None) -> tuple[str, ...]:
    status = "held, approved" if state.status == "held" and state.approved else state.status
    return (f"    {state.release}", status, str(state.draws), str(state.charges), time[:10], operator or "-")


def _print_account(
    name: str, account: Account | None, lines: Sequence[tuple[str, ...]], shown: Collection[str]
) -> None:
    """Print a dataset or family: its releases, and what is spent and left at the reference of each limit.

    The limits of a dataset's family stand there too, unless the family is among what is `shown`.
    """
    budget = account.budget if account else None
    say(f"dataset {name}" if budget is None else _title(budget))
    if lines:
        print_columns([("    release", "state", "draws", "charged", "since", "by"), *lines])
    if account is None:
        return
    family = account.family
    if account.limits:
        _print_limits("rho over all releases, at most", account)
    elif family is None or not family.limits:
        say("    no limit: its loss may grow without bound")
    if family is not None and family.limits:
        if family.name in shown:
            say(f"    the limits of family {family.name}, above, bind it too")
        else:
            _print_limits(f"rho over family {family.name}, at most", family)
    if budget is not None and budget.reason:
        say(f"    limits replaced: {budget.reason}")


def _print_limits(title: str, account: Account) -> None:
    of_limits = [
        (each.limit.at.label, str(as_json(each.limit.rho)), bound_text(each.total), down_text(each.left))
        for each in account.limits
    ]
    for line in fitted([(title, "limit", "spent", "left"), *of_limits], WIDTH - 2):
        put(f"  {line}")


def print_budget(budget: Budget) -> None:
    """Print what is registered, and its limits in words."""
    say(_title(budget))
    for limit in budget.limits:
        say(f"    over all releases {limit.label} and every smaller one lose at most rho {as_json(limit.rho)}")
    if budget.reason:
        say(f"    limits replaced: {budget.reason}")


def _title(budget: Budget) -> str:
    family = f" of family {budget.family}" if budget.family else ""
    return f"{budget.kind} {budget.name}{family}, unit {budget.unit}{', synthetic' if budget.synthetic else ''}"


def _print_history(history: History) -> None:
    put(f"output {history.state.out}")
    check = history.state.check
    if check is not None:
        by = "this plan" if check["digest"] == history.state.digest else "another plan"
        say(f"its microdata were checked before by {by}: {check['time'][:19]}, entry {check['entry']}")
    for time, event, operator in history.acts:
        say(f"{time[:19]} {event} by {operator or '-'}")
    for attempt in history.attempts:
        staged = attempt.staging or "beside the ledger"
        say(f"attempt {attempt.attempt}, draw {attempt.draw}: {attempt.stage}, staged {staged}")
    for test in history.state.tests:
        verdict = "passed" if test.passed else "refused"
        say(f"test of records left out: {verdict}, {test.left_out:,} left out and {test.kept:,} kept, with noise")
    for line in approval_lines(history.state):
        say(line)
    if history.state.reason:
        say(f"reason: {history.state.reason}")


def _spent(ledger: Ledger, at: str, release: str | None, dataset: str | None) -> list[Spending]:
    if release is not None:
        _require_known(ledger, release, dataset)
        (dataset,) = (state.dataset for state in ledger.states() if state.release == release)
    return spendings(ledger, at, dataset)


def _print_lost(lines: Sequence[Lost]) -> None:
    """Print what a reference lost by dataset, family and year, and in all, and what each limit leaves."""
    references = list(dict.fromkeys(line.at for line in lines if line.limit is None))
    say(f"lost by {' or '.join(references)} (rho, at most), by the UTC year in which releases were reserved")
    rows = [("    of", "year", "releases", "spent", "limit", "left")]
    for line in lines:
        of_limit = line.limit is not None
        asked = f", at {line.at}" if len(references) > 1 else ""
        label = f"        limit at {line.at}" if of_limit else f"    {line.kind} {line.name}{asked}"
        rows.append((label, *(("", "") if of_limit else (line.period, str(line.releases))), *line.losses()))
    print_columns(rows)


def _print_spending(spending: Spending) -> None:
    """Print what each release of a dataset or family cost a reference, what is left of it, and what that means."""
    say(f"{spending.kind} {spending.dataset}, at {spending.at.label}")
    if spending.assumed:
        added = ", ".join(f"{name}={as_json(value)}" for name, value in spending.assumed.items())
        say(f"    {added} was not asked for: it is that of the smallest limit that covers the reference then")
    rows = [("    release", "state", "charged", "rho", "a mechanism's bound")]
    for (s, loss), shares, least in zip(spending.spent, spending.excess, spending.least, strict=True):
        worst = None if None in shares.values() else max(filter(None, shares.values()), default=0.0)
        above = gap_text(loss, least) if least else excess_text(worst)
        rows.append((f"    {s.release}", s.status, str(s.charges), bound_text(loss), above))
    print_columns([*rows, ("    spent", "", "", bound_text(spending.total), "")])
    pure = "none" if spending.epsilon is None else bound_text(spending.epsilon)
    tests = bound_text(spending.of_tests)
    say(f"    of it {tests} by tests of records left out; pure epsilon {pure}")
    if spending.limit is None or spending.left is None:
        say("    no limit covers it: its loss may grow without bound")
    else:
        by = f"{as_json(spending.limit.rho)} at {spending.limit.label}"
        say(f"    left {down_text(spending.left)}, by the limit {by}")
    _print_promise(spending)


def _print_promise(spending: Spending) -> None:
    means = spending.means
    if means is None:
        say(
            "    no (ε, δ): no limit that binds it was fixed before the first release and never stated anew since, and "
            "what was spent is no bound where later releases were chosen by what earlier ones showed"
        )
        return
    say(
        f"    the limit {means['limit']['rho']} at {means['limit']['at']} was fixed before the first release: all "
        "releases, however each is chosen by what earlier ones showed, keep together"
    )
    say(f"    {spending.means_text}")
