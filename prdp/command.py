"""The script `prdp`: refuses packages of others that bear the common names of prdp's own, then runs jobs.cli."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

OWN = ("udfs", "pipeline", "jobs")
COMMAND = "jobs.cli"  # a name, as in an entry point: it must not be imported before OWN are looked at


def main(words: Sequence[str] | None = None) -> int:
    """Run one command as jobs.cli.main does; return 1 where one of OWN, as found on the path, is not beside prdp."""
    home = Path(__file__).resolve().parents[1]
    for name in OWN:
        spec = find_spec(name)
        place = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if place is None or Path(place).resolve() != home / name / "__init__.py":
            print(f"error: the package {name} at {place} is not prdp's: take it off the Python path", file=sys.stderr)
            return 1
    code: int = import_module(COMMAND).main(words)
    return code
