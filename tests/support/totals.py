"""All totals of a plan, as an engine sums them for a release: what attacks compare."""

import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.engines.protocol import Engine
from pipeline.engines.writers import Block
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.release.input_records import records_of
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging


def totals_in(block: Block) -> list[int]:
    totals: list[int] = block.totals.tolist()
    return totals


def totals_of(plan: Path, microdata: Path, engine: Engine, scratch: Path) -> dict[str, NDArray[np.object_]]:
    """Return the totals of each query's cells, in their order, as whole numbers of any size."""
    loaded = load_plan(plan)
    staging = Staging(locate(scratch), loaded.release, uuid.uuid4().hex)
    with records_of(list(chunks(find(locate(microdata)))), loaded, engine, staging.root, False) as (given, layout):
        totals = engine.totals(given, layout, staging)
        return {
            table.name: np.array([each for part in totals.over(table.number, totals_in) for each in part], dtype=object)
            for table in layout.tables
        }
