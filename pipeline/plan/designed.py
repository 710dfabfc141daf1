"""The file of a designed noise: its table of weights, a digest that guards it, and for what it was designed."""

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.base.canonical import canonical_json
from pipeline.base.plain import plain_json
from pipeline.storage.inputs import read_input
from udfs.mechanisms.heavy_tailed import WeightTable
from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import as_json

KIND = "designed noise"
MOST_BYTES = 4_000_000


def weights_file(table: WeightTable, step: Fraction, design: Mapping[str, Any]) -> str:
    """Return the text of the file, for a measure of this `step`; `design` says for what, and binds nothing."""
    weights = {"step": as_json(step)} | table.to_json()
    document = {"kind": KIND, "digest": digest_of(weights), "design": dict(design), "weights": weights}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def digest_of(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a table's canonical JSON."""
    return hashlib.sha256(canonical_json(weights).encode()).hexdigest()


def read_weights(path: Path, parameter: str, step: Fraction) -> Mapping[str, Any]:
    """Return the table of a file that `weights_file` made, as JSON.

    Raises ParameterError, which names `parameter`, where there is none, where it is not what was written, and where it
    was made for a measure of another step than `step`.
    """
    try:
        document = plain_json(read_input(path, MOST_BYTES))
    except OSError as error:
        raise ParameterError(parameter, f"a file that can be read; {path.name}: {error.strerror}") from None
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND or not isinstance(document.get("weights"), dict):
        raise ParameterError(parameter, f"a file that prdp design wrote; {path.name} is none")
    weights: Mapping[str, Any] = document["weights"]
    if document.get("digest") != digest_of(weights):
        raise ParameterError(parameter, f"as prdp design wrote it: the table in {path.name} was changed since")
    made_for = weights.get("step")
    if made_for != as_json(step):
        raise ParameterError(parameter, f"a table for the measure's step {as_json(step)}; {path.name} has {made_for}")
    return {name: value for name, value in weights.items() if name != "step"}
