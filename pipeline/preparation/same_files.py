"""Whether microdata are files of another dataset under other names: links and mounts lead to them too.

A file of this machine is known by its device and number, whatever leads to it. Copies and stores are not known so. Of
tables two versions may have no file in common: they are known by their folder.
"""

from collections.abc import Iterable
from os import stat

from pipeline.errors import PrdpError, StateError
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.lakehouse import Place, TableVersion, microdata_at
from pipeline.preparation.pinned import Microdata, source_of
from pipeline.storage.uri import locate


def require_own_files(ledger: Ledger, dataset: str, microdata: Microdata) -> None:
    """Return unless a file of `microdata` is one of another registered dataset's; raises StateError then.

    A table may be no other dataset's either of which a release is charged, in whichever version.
    """
    if isinstance(microdata, TableVersion):
        for other, at in ledger.sources():
            if at == source_of(microdata) and other != dataset:
                raise StateError(
                    f"dataset {dataset}: its microdata {microdata} are those of dataset {other}: name that one"
                )
    registered = ((budget.name, budget.source) for budget in ledger.budgets().values())
    _require_apart(dataset, microdata, registered)


def require_new_files(ledger: Ledger, dataset: str, at: str) -> None:
    """Return unless a file at `at` is one of another dataset, registered or released; raises StateError then."""
    registered = ((budget.name, budget.source) for budget in ledger.budgets().values())
    if not at.startswith(("table ", "DataFrame ")):
        _require_apart(
            dataset, microdata_at(locate(at)), dict.fromkeys([*registered, *sorted(ledger.sources(), key=str)])
        )


def _require_apart(dataset: str, microdata: Microdata, known: Iterable[tuple[str, str | None]]) -> None:
    mine = _files(microdata) if isinstance(microdata, Place) else set()
    for other, at in known:
        if not mine or other == dataset or at is None or at.startswith(("table ", "DataFrame")):
            continue
        if mine & _files(microdata_at(locate(at))):
            raise StateError(
                f"dataset {dataset}: its microdata {microdata} are files of dataset {other}, {at}: name that one"
            )


def _files(microdata: Place) -> set[tuple[int, int]]:
    """Return device and number of each file; none of a store, and none where they cannot be found or read."""
    if microdata.remote:
        return set()
    try:
        facts = [stat(str(file)) for file in source.find(microdata).files]
    except (PrdpError, OSError):
        return set()
    return {(each.st_dev, each.st_ino) for each in facts}
