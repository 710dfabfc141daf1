"""prdp evaluate: mechanisms beside each other on synthetic microdata."""

import argparse
from dataclasses import replace

from jobs.cli import show_json
from jobs.engine import chosen_engine
from pipeline.log import Progress
from pipeline.study.run import DOCUMENT, PAGE, StudyJob, evaluate
from pipeline.study.spec import load_study


def run(given: argparse.Namespace) -> None:
    """Write the study, then print where it is, or its figures."""
    study = load_study(given.study)
    data = study.data
    records = data.records if given.records is None else given.records
    seed = data.seed if given.seed is None else given.seed
    with chosen_engine(given) as engine:
        job = StudyJob(
            study=replace(study, data=replace(data, records=records, seed=seed)),
            out=given.out,
            engine=engine,
            say=Progress().say,
        )
        made = evaluate(job)
    if given.json:
        show_json(made)
    else:
        print(f"study {study.name}\npage  {given.out / PAGE}\ndata  {given.out / DOCUMENT}")
