"""The commands before a release, which read no microdata: generate, explain, calibrate, try and study."""

import argparse
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from jobs.commands import print_columns, print_json, put, tell
from jobs.options import Act, Parser, add_call, called, values_set
from prdp.declared import Arg
from udfs.numbers.exact import bound_text, down_text

if TYPE_CHECKING:
    from prdp.explanation import Explanation

DETAIL = "after the verdict: policy functions, curves, losses and errors of each table"
Detail = Annotated[bool, Arg(DETAIL)]
Plot = Annotated[str | None, Arg("draw the policy curves into an SVG or PNG file", "FILE")]
MEASURED = ("establishments", "employment", "payroll")


def _show_explanation(
    made: "Explanation", arguments: argparse.Namespace, *, detail: Detail = False, plot: Plot = None
) -> None:
    """Print the verdict, and more where it is asked for; exit code 3 where the plan breaks its own limits."""
    if plot is not None:
        made.plot(plot)
    if arguments.json:
        print_json(made.to_json())
    else:
        tell(made.text(detail=detail))
    made.require_within()


def _declare_trial(parser: Parser) -> None:
    add_call(parser, "prdp.trials.try_plan", but=("scheduler", "master"))


def _try(arguments: argparse.Namespace) -> None:
    """Print what the trial showed; BudgetRefused where a plan breaks a limit of its own."""
    from prdp.trials import try_plan, with_own_values  # noqa: PLC0415 — `explain` does without

    values = values_set(arguments)
    beside = [with_own_values(path, values) for path in arguments.beside or ()]
    tried = called(try_plan, arguments, beside=beside)
    if arguments.json:
        print_json(tried)
    else:
        tell(str(tried))
    tried.require_within()


def _show_study(figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    from pipeline.planning.study.studies import DOCUMENT, PAGE  # noqa: PLC0415 — `explain` does without

    put(f"study {figures['study']}\npage  {arguments.out}/{PAGE}\ndata  {arguments.out}/{DOCUMENT}")


def _show_publication(figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    from pipeline.planning.study import equal_publication  # noqa: PLC0415 — likewise

    print_columns(list(equal_publication.columns(figures)))
    put("\n".join(equal_publication.notes(figures)))
    put(f"data {arguments.out}/{equal_publication.DOCUMENT}")


def _show_suppression(figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    from pipeline.planning.study import suppression  # noqa: PLC0415 — likewise

    for rows in suppression.columns(figures):
        print_columns(rows)
        put()
    put("\n".join(suppression.NOTES))
    put(f"data {arguments.out}/{suppression.DOCUMENT}")


def _show_epsilon(epsilon: float, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"rho": float(arguments.rho), "delta": float(arguments.delta), "epsilon": epsilon})
    else:
        put(f"rho {arguments.rho}: (ε, δ) = ({bound_text(epsilon)}, {arguments.delta}), by Rényi orders")


def _show_rho(rho: float, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"epsilon": float(arguments.epsilon), "delta": float(arguments.delta), "rho": rho})
    else:
        text = down_text(Fraction(rho))
        put(f"(ε, δ) = ({arguments.epsilon}, {arguments.delta}): follows from rho {text} or less, by Rényi orders")


def _show_today(figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    (_print_withheld if arguments.beside is None else _print_beside)(figures)


def _print_withheld(described: dict[str, Any]) -> None:
    rows = [["level", *(head for kind in ("cells listed", "filled in") for head in (kind, "withheld", "these hold"))]]
    for level in described["levels"]:
        rows.append([level["level"]])
        for counted in (level["listed"], level["filled_in"]):
            shares = (f"{counted[f'{of}_share']:.1%}" for of in ("cells", "establishments"))
            rows[-1] += [f"{counted['cells']:,}", *shares]
    print_columns(rows)
    rest = described["not_listed"]
    put("withheld: employment, flag D or S; these hold: their share of establishments")
    put("filled in: with codes that figures leave out as their parent's only child")
    put(f"not listed: {rest['establishments']:,} establishments of eleven other codes, in {rest['cells']} cells")


def _print_beside(figures: dict[str, Any]) -> None:
    """Print what `beside_today` returned: by today's flag, by size of cell, and what records lose."""
    rows = [["level", "today", "cells", "employment", "90 %", "usable", "payroll", "90 %", "usable"]]
    for level in figures["levels"]:
        for flag, cells in level["flags"].items():
            measured = [_text(cells[of]) for of in ("employment", "payroll")]
            rows.append([level["level"], flag, f"{cells['cells']:,}", *measured[0], *measured[1]])
    print_columns(rows)
    put("today: G, H: published with noise of less than 2 % and 5 %; D, S: withheld")
    put("employment, payroll: median relative error; 90 %: nine in ten errors are below")
    put()
    rows = [["level", "withheld today", "usable", "usable cells", "worse than today"]]
    for level in figures["levels"]:
        shares = (f"{level[of]:.0%}" for of in ("usable_employment", "usable_cells", "worse_cells"))
        rows.append([level["level"], f"{level['withheld_share']:.1%}", *shares])
    print_columns(rows)
    put("employment; usable: chance of an error of at most 30 %, on average over cells")
    put("usable cells: withheld today, standard error here at most 30 %")
    put("worse than today: of the cells published, those with one above 5 %")
    put(f"errors: {'once all tables add up' if figures['reconciled'] else 'as released'}")
    put()
    rows = [["level", "employees", "cells", *(head for of in ("estab.", *MEASURED[1:]) for head in (of, "90 %"))]]
    for level in figures["levels"]:
        for cells in level["sizes"]:
            errors = [text for of in MEASURED for text in _text(cells[of])[:2]]
            rows.append([level["level"], f"from {cells['from']:,}", f"{cells['cells']:,}", *errors])
    print_columns(rows)
    put()
    rows = [["a record of", "loses in these tables", "in the whole plan", "all no larger"]]
    for loss in figures["losses"]:
        rows.append([loss["label"], *(bound_text(loss[kind], 3) for kind in ("tables", "plan", "all_no_larger"))])
    print_columns(rows)


def _text(errors: dict[str, float | None]) -> list[str]:
    shares = (errors[kind] for kind in ("median", "ninety", "usable"))
    return ["-" if share is None else f"{share:.2%}" if 0 < share < 0.1 else f"{share:,.0%}" for share in shares]


STUDIES = {
    "run": Act(
        "compare mechanisms on synthetic microdata",
        "prdp.studies.evaluate",
        "run conf/studies/slides.yaml --records 100000 --out study",
        _show_study,
    ),
    "publication": Act(
        "a whole publication with every kind of noise, each as accurate as the plan's",
        "prdp.trials.publication",
        "publication plan.yaml --out publication",
        _show_publication,
    ),
    "suppression": Act(
        "a plan's tables beside cell suppression and multiplicative noise",
        "prdp.studies.suppression",
        "suppression plan.yaml --out suppression",
        _show_suppression,
    ),
    "today": Act(
        "how much of published figures is withheld today, and a plan's errors in the same cells",
        "prdp.studies.today",
        "today --like cbp-2011 --beside plan.yaml",
        _show_today,
    ),
    "kinds": Act(
        "which kind of noise has the least error in each table, within a plan's own limits",
        "prdp.trials.rank_kinds",
        "kinds plan.yaml --total 500",
    ),
    "compare": Act(
        "rank families and shapes of noise by the losses of records, at equal accuracy",
        "prdp.calibration.compare",
        "compare --standard-error 30 --total 500",
    ),
    "alpha": Act(
        "the best alpha of symmetric stable noise",
        "prdp.calibration.best_alpha",
        "alpha --least error --loss 4 --at 1000",
    ),
    "group": Act(
        "the offset and scale of groupwise noise, by what a record in a group may lose",
        "prdp.calibration.group_scale",
        "group --group-loss 1 --group 100 --relative-error 0.1 --total 50",
    ),
    "design": Act(
        "find the noise with the least error under limits on losses",
        "prdp.studies.designed",
        "design --limit 10:0.12 --limit 100:1 --limit 10000:10 --minimise variance --out noise.json",
    ),
    "scales": Act(
        "the exact, the closed and the classical scale of Gaussian noise for (ε, δ)",
        "prdp.calibration.gaussian_scales",
        "scales --epsilon 1 --delta 1e-5",
    ),
    "epsilon": Act(
        "the ε at a δ that follows from a rho",
        "prdp.calibration.epsilon",
        "epsilon --rho 0.5 --delta 1e-6",
        _show_epsilon,
        prints_json=True,
    ),
    "rho": Act(
        "the largest rho from which an (ε, δ) follows",
        "prdp.calibration.rho",
        "rho --epsilon 1 --delta 1e-6",
        _show_rho,
        prints_json=True,
    ),
}
ACTS = {
    "generate": Act("", "prdp.studies.made", "generate --records 1000000 --out data"),
    "explain": Act(
        "",
        "prdp.plans.Plan.explain",
        "explain plan.yaml --at employment=10,payroll=500 --at employment=5000,payroll=300000",
        _show_explanation,
        prints_json=True,
    ),
    "calibrate": Act(
        "", "prdp.calibration.calibrate", "calibrate --kind log --set a=100 --standard-error 30 --total 500"
    ),
    "try": Act("", example="try plan.yaml --draws 20 --page plan.html", declare=_declare_trial, run=_try),
    "study": Act("", example="study run conf/studies/slides.yaml --records 100000 --out study", acts=STUDIES),
}
