"""prdp evaluate: a study that compares mechanisms on synthetic microdata."""

import argparse
from dataclasses import replace
from pathlib import Path

from jobs.inputs import chosen_engine
from jobs.options import Parser, add_engine, add_json, add_new_folder, count
from jobs.output import print_json
from pipeline.study.run import DOCUMENT, PAGE, StudyJob, evaluate
from pipeline.study.spec import load_study

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
    study = load_study(arguments.study)
    changes = {name: getattr(arguments, name) for name in ("records", "seed") if getattr(arguments, name) is not None}
    with chosen_engine(arguments) as engine:
        job = StudyJob(
            study=replace(study, data=replace(study.data, **changes)),
            out=arguments.out,
            engine=engine,
            log=arguments.log,
        )
        figures = evaluate(job)
    if arguments.json:
        print_json(figures)
    else:
        print(f"study {study.name}\npage  {arguments.out / PAGE}\ndata  {arguments.out / DOCUMENT}")
