"""Reference records as they are typed: measures and their values, without a place, for a whole dataset."""

from collections.abc import Collection, Mapping
from fractions import Fraction

from pipeline.accounting.groups import Firm, Row
from pipeline.accounting.policy import Reference
from pipeline.errors import PlanError, nearest
from pipeline.plan.model import RECORD
from udfs.numbers.exact import as_json, exact


def typed_reference(text: str, unit: str, measures: Collection[str]) -> Reference | Firm:
    """Return what `text` names, such as "employment=10,payroll=500"; a firm's records are separated by ";".

    Raises PlanError on anything but measures with numbers of at least 0, and on several records where the unit is one.
    """
    records = [_record(part, measures) for part in text.split(";")]
    if unit == RECORD:
        if len(records) > 1:
            raise PlanError(f"--at {text}: the dataset's unit is the record: give one, without ;")
        return records[0]
    return tuple(Row(record) for record in records)


def label_of(at: Reference | Firm) -> str:
    """Return a reference in words."""
    if isinstance(at, tuple):
        return "; ".join(label_of(row.at) for row in at)
    return ", ".join(f"{name}={as_json(value)}" for name, value in at.items()) or "any record"


def values_json(at: Reference | Firm) -> object:
    """Return a reference as JSON, as a plan writes it."""
    if isinstance(at, tuple):
        return [values_json(row.at) for row in at]
    return {name: as_json(value) for name, value in at.items()}


def reaches(limit: Reference | Firm, at: Reference | Firm) -> bool:
    """Whether a limit at the reference `limit` binds the record or firm `at`: each of its records is matched."""
    if isinstance(limit, tuple) and isinstance(at, tuple):
        return _matched([row.at for row in at], [row.at for row in limit])
    return not isinstance(limit, tuple) and not isinstance(at, tuple) and _covers(limit, at)


def _covers(larger: Reference, record: Reference) -> bool:
    return all(abs(value) <= abs(larger.get(name, Fraction(-1))) for name, value in record.items())


def _matched(records: list[Reference], larger: list[Reference]) -> bool:
    """Whether each record has a larger one of its own (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(i: int, seen: set[int]) -> bool:
        for j, candidate in enumerate(larger):
            if j not in seen and _covers(candidate, records[i]):
                seen.add(j)
                if j not in owner or place(owner[j], seen):
                    owner[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(records)))


def _record(text: str, measures: Collection[str]) -> Mapping[str, Fraction]:
    found: dict[str, Fraction] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = piece.partition("=")
        if not equals or name in found:
            raise PlanError(f"--at {text}: write each measure once as name=value, separated by commas")
        if name not in measures:
            raise PlanError(f"--at {name}: unknown measure of the dataset; nearest known: {nearest(name, measures)}")
        try:
            found[name] = exact(value)
        except ValueError:
            raise PlanError(f"--at {name}: {value!r} is no number") from None
        if not found[name] >= 0:
            raise PlanError(f"--at {name}: must be at least 0")
    return found
