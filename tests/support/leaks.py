"""What an error, an object or a log tells, searched for values that must not be there."""

import base64
import pickle
import traceback
from collections.abc import Iterable


def told(error: BaseException) -> str:
    """Return all that could reach a log or another process with `error`: text, traceback, chain and pickled bytes."""
    chain = "".join(traceback.format_exception(error))
    hidden = [e for e in (error.__cause__, error.__context__) if e is not None]
    pickled = pickle.dumps(error).decode("latin-1")
    return "\n".join([str(error), repr(error), chain, pickled, *(told(e) for e in hidden)])


def found(text: str, canaries: Iterable[str]) -> list[str]:
    """Return the canaries that stand in `text`."""
    return [canary for canary in canaries if canary in text]


def forms(raw: bytes) -> list[str]:
    """Return the forms in which bytes may stand in a text."""
    listed = ", ".join(str(byte) for byte in raw)
    return [
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        repr(raw)[2:-1],
        raw.decode("latin-1"),
        listed,
        str(int.from_bytes(raw, "big")),
        str(int.from_bytes(raw, "little")),
    ]
