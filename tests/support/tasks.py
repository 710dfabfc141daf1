"""Tasks for the verb `each`; workers import this module, or get it by value."""

from pathlib import Path

from pipeline.errors import MicrodataError
from udfs.contract import ContractBroken

CANARY = "CANARY-735-00-1"


def squared(number: int) -> tuple[int, bytes]:
    return number**2, bytes(number)


def against_the_contract(number: int) -> int:
    raise ContractBroken("employment", "is empty (null)")


def unreadable(number: int) -> int:
    raise MicrodataError("microdata x: unreadable")


def talkative(number: int) -> int:
    raise ValueError(f"the record of {CANARY} is odd")


def missing(number: int) -> int:
    return len(Path(f"/{CANARY}").read_bytes())
