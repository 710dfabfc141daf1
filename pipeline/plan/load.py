"""A plan's file → the frozen, resolved plan, or all its mistakes at once."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from pipeline.domain import Domain
from pipeline.errors import PlanError
from pipeline.plan.check import mistakes_of_meaning
from pipeline.plan.domain_spec import domain_mistakes, files_of, is_readable, read_domain
from pipeline.plan.messages import Mistake, shape_mistakes, without_echoes
from pipeline.plan.model import Plan
from pipeline.plan.resolve import resolve
from pipeline.plan.schema import PlanSpec
from pipeline.plan.sound import sound_parts
from pipeline.plan.text import PlanText, read_text
from pipeline.plan.vintage import alien_codes, vintage_mistakes

MOST_TOLD = 20  # mistakes
MOST_SOUGHT = 1000  # mistakes of each kind; a file of a megabyte may hold hundreds of thousands


def load_plan(path: Path) -> Plan:
    """Return the resolved plan of the YAML file `path`; other paths in it are relative to its folder.

    Its digest depends on what the plan means, not on how or where it is written. Raises PlanError whose message holds
    one line for each mistake, in the order of the file, up to MOST_TOLD of them.
    """
    text = read_text(path)
    mistakes: list[Mistake] = []
    try:
        spec = PlanSpec.model_validate(text.data)
    except ValidationError as error:
        mistakes += islice(shape_mistakes(error.errors(include_url=False)), MOST_SOUGHT)
        spec = sound_parts(text.data)
    domain, wrong_files = _domain(spec, path.parent, mistakes)
    mistakes += islice(mistakes_of_meaning(spec, domain), MOST_SOUGHT)
    if mistakes or wrong_files or domain is None:
        raise PlanError("\n".join(_lines(mistakes, wrong_files, text, path)))
    return resolve(spec, domain, path)


def _domain(spec: PlanSpec, folder: Path, mistakes: list[Mistake]) -> tuple[Domain | None, list[str]]:
    """Return the domain, if it can be read, and a line for each of its files that is wrong; add to `mistakes`."""
    named = getattr(spec, "domain", None)
    if named is None:
        return None, []
    wrong = list(domain_mistakes(named))
    mistakes += wrong
    if hasattr(named, "vintage"):
        mistakes += vintage_mistakes(named.vintage)
    if wrong or not is_readable(named):
        return None, []
    try:
        domain = read_domain(named, folder)
    except PlanError as error:
        return None, str(error).split("\n")
    return domain, list(alien_codes(domain, files_of(named, folder)))


def _lines(mistakes: Iterable[Mistake], wrong_files: Iterable[str], text: PlanText, path: Path) -> list[str]:
    """Return all lines in the order of the plan's file, those about the domain's files at the key domain."""
    placed = [(text.position(mistake.path), f"{path}: {mistake.line}") for mistake in without_echoes(mistakes)]
    placed += [(text.position(("domain",)), line) for line in wrong_files]
    lines = [line for _, line in sorted(placed, key=lambda entry: entry[0])]
    return lines if len(lines) <= MOST_TOLD else [*lines[:MOST_TOLD], f"{path}: and more mistakes: mend these first"]
