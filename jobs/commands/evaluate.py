"""prdp evaluate: studies on synthetic microdata, of mechanisms, and of a plan beside suppression."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_engine, add_json, add_new_folder, add_set, count, engine_options, values_set
from jobs.output import print_columns, print_json, put
from pipeline.base.errors import PlanError
from pipeline.planning.economy.published import FIGURES
from pipeline.planning.study import equal_publication as equal_output
from pipeline.planning.study import suppression as suppression_output
from pipeline.planning.study.studies import DOCUMENT, PAGE
from prdp.plans import load_plan
from prdp.studies import evaluate, suppression
from prdp.trials import publication

OF = {  # the options that go with each of what stands in place of a study
    "suppression": ("sum", "tables", "rules", "firm", "ledger"),
    "publication": ("equal", "kinds", "like", "states", "draws"),
}
EXAMPLE = "prdp evaluate conf/studies/slides.yaml --records 100000 --out study"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "study", type=Path, nargs="?", metavar="STUDY", help="the study, a YAML file such as conf/studies/slides.yaml"
    )
    parser.add_argument("--records", type=count, metavar="N", help="number of records (default: the study's)")
    parser.add_argument("--seed", type=count, metavar="S", help="seed of the microdata, or of what --suppression draws")
    of_plan = parser.add_argument_group("in place of a study: a plan's tables beside cell suppression")
    of_plan.add_argument(
        "--suppression", type=Path, metavar="PLAN", help="a plan beside microdata of prdp generate, which are read"
    )
    of_plan.add_argument("--sum", metavar="MEASURE", help="the measure whose tables are taken (default: the first)")
    of_plan.add_argument(
        "--tables", type=_names, metavar="NAME,…", help="the tables (default: all with one mechanism and no filter)"
    )
    of_plan.add_argument(
        "--rules",
        type=_numbers,
        metavar="RULES",
        help="the rules that hold (default: p=10,n=2,k=85,threshold=3); width=10: what the threshold protects, in %%",
    )
    of_plan.add_argument("--firm", metavar="COLUMN", help="the column of firms (default: the plan's unit, or firm_id)")
    of_plan.add_argument(
        "--ledger", metavar="URL", help="read for fingerprints of known datasets (default: your own, if there is one)"
    )
    whole = parser.add_argument_group("in place of a study: a whole publication with every kind of noise")
    whole.add_argument("--publication", type=Path, metavar="PLAN", help="a plan, all of whose tables get each kind")
    whole.add_argument(
        "--equal", metavar="ACCURACY", help="variance (default), mean_absolute_error, median_relative_error, interval"
    )
    whole.add_argument("--kinds", type=_names, metavar="NAME,…", help="kinds of noise (default: all)")
    whole.add_argument("--like", choices=FIGURES, metavar="FIGURES", help=f"add up to figures: {' or '.join(FIGURES)}")
    whole.add_argument("--states", type=_names, metavar="CODES", help="with --like: 56,50 (default: all)")
    whole.add_argument("--draws", type=count, metavar="N", help="how often errors are drawn (default: 10)")
    add_set(parser, "the value of a variable of --suppression's or --publication's plan")
    add_new_folder(parser)
    add_engine(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the study, then print where it is, or its figures."""
    given = [name for name in ("study", *OF) if getattr(arguments, name) is not None]
    if len(given) != 1:
        raise PlanError("give one of a study, --suppression PLAN and --publication PLAN")
    for wanted, names in OF.items():
        wrong = [name for name in names if getattr(arguments, name) is not None and wanted != given[0]]
        if wrong:
            raise PlanError(f"--{wrong[0]}: it goes with --{wanted} alone")
    if given[0] != "study":
        (_suppression if given[0] == "suppression" else _publication)(arguments)
        return
    if arguments.set:
        raise PlanError("--set: gives a plan's variables their values; a study has none")
    figures = evaluate(
        arguments.study, arguments.out, records=arguments.records, seed=arguments.seed, **engine_options(arguments)
    )
    if arguments.json:
        print_json(figures)
    else:
        put(f"study {figures['study']}\npage  {arguments.out / PAGE}\ndata  {arguments.out / DOCUMENT}")


def _suppression(arguments: argparse.Namespace) -> None:
    if arguments.records is not None:
        raise PlanError("--records: it goes with a study alone; --suppression reads the plan's microdata")
    figures = suppression(
        load_plan(arguments.suppression, set=values_set(arguments)),
        arguments.out,
        measure=arguments.sum,
        tables=arguments.tables or (),
        rules=arguments.rules,
        firm=arguments.firm,
        seed=arguments.seed or 0,
        ledger=arguments.ledger,
        log=arguments.log,
    )
    if arguments.json:
        print_json(figures)
        return
    for rows in suppression_output.columns(figures):
        print_columns(rows)
        put()
    put("\n".join(suppression_output.NOTES))
    put(f"data {arguments.out / suppression_output.DOCUMENT}")


def _publication(arguments: argparse.Namespace) -> None:
    figures = publication(
        load_plan(arguments.publication, set=values_set(arguments)),
        arguments.out,
        equal=arguments.equal or "variance",
        kinds=arguments.kinds or (),
        records=arguments.records,
        like=arguments.like,
        states=arguments.states or (),
        draws=10 if arguments.draws is None else arguments.draws,
        seed=arguments.seed or 0,
        **engine_options(arguments),
    )
    if arguments.json:
        print_json(figures)
        return
    print_columns(list(equal_output.columns(figures)))
    put("\n".join(equal_output.notes(figures)))
    put(f"data {arguments.out / equal_output.DOCUMENT}")


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> dict[str, float]:
    try:
        return {name: float(number) for name, number in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form p=10,n=2,k=85,threshold=3") from None
