"""prdp evaluate: a study that compares mechanisms on synthetic microdata."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_engine, add_json, add_new_folder, count, engine_options
from jobs.output import print_json
from pipeline.study.run import DOCUMENT, PAGE
from prdp.studies import evaluate

EXAMPLE = "prdp evaluate conf/studies/slides.yaml --records 100000 --out study"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "study", type=Path, metavar="STUDY", help="the study, a YAML file such as conf/studies/slides.yaml"
    )
    parser.add_argument("--records", type=count, metavar="N", help="number of records (default: the study's)")
    parser.add_argument("--seed", type=count, metavar="S", help="seed of the microdata (default: the study's)")
    add_new_folder(parser)
    add_engine(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the study, then print where it is, or its figures."""
    figures = evaluate(
        arguments.study, arguments.out, records=arguments.records, seed=arguments.seed, **engine_options(arguments)
    )
    if arguments.json:
        print_json(figures)
    else:
        print(f"study {figures['study']}\npage  {arguments.out / PAGE}\ndata  {arguments.out / DOCUMENT}")
