"""Confidential runs over microdata: recorded in the ledger before any record is read, on files that must not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError
from pipeline.base.log import Log
from pipeline.engines.protocol import Engine
from pipeline.ledger.entries import Diagnosed
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.lakehouse import Place
from pipeline.microdata.source import Source
from pipeline.plan.model import Plan


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """A run over the microdata of a plan, which draws and charges nothing."""

    plan: Plan
    microdata: Place
    ledger: Ledger
    engine: Engine
    log: Log = field(default_factory=Log)

    @contextmanager
    def recorded(self, files: Source, **facts: Any) -> Iterator[None]:
        """Record the run, with `facts` of its kind, then yield; MicrodataError where the files changed meanwhile."""
        plan, pin = self.plan, source.pin(files)
        of_run = {"pin": pin, "code": code_digest(), "engine": self.engine.name} | facts
        self.ledger.diagnosed(Diagnosed(dataset=plan.dataset.name, release=plan.release, digest=plan.digest, **of_run))
        yield
        if source.pin(source.find(files.root)) != pin:
            raise MicrodataError(
                f"microdata {files.root}: its files changed during the run; retry once nothing writes to them"
            )
