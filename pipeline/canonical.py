"""One canonical text for a JSON value, so that equal facts have equal digests on every machine."""

import hashlib
import json


def canonical_json(value: object) -> str:
    """Return the canonical text of `value`: keys sorted, no spaces, shortest decimals, no NaN or infinity.

    Raises ValueError on NaN or infinity, TypeError on what JSON cannot hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object) -> str:
    """Return "sha256:" and the hexadecimal SHA-256 of the canonical text of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()
