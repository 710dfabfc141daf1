"""The counts of records that a release gets with its totals."""

import uuid
from pathlib import Path

from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.release.input_records import records_of
from pipeline.release.pinned import prepared_for
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.submit import Place
from udfs.records.sums import UNCOUNTED, RecordCounts


def counted(place: Place, microdata: Path | None = None, engine: Engine | None = None) -> RecordCounts:
    """Sum the microdata as a release does; return the counts of records."""
    plan, engine = load_plan(place.plan), engine or DaskEngine(workers=1)
    given = locate(microdata or place.folder / "microdata")
    known = prepared_for(given, plan)
    scratch = Staging(locate(place.folder / "staging"), plan.release, f"totals-{uuid.uuid4().hex}")
    found = records_of(list(chunks(find(given))), plan, engine, scratch.root, known is not None)
    with found as (records, layout):
        return engine.totals(records, layout, scratch, known.before if known else UNCOUNTED).records
