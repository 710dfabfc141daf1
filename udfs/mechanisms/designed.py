"""Noise designed for a policy: additive noise whose weights are a table (docs/design.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from udfs.losses.piecewise import pure_exactly, pure_of
from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.noise import FLOAT_SLACK, POLICY, Noise
from udfs.mechanisms.parameters import choice, table
from udfs.noise.piecewise import PiecewiseWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, exact

EXACT_STEPS = 2.0**46  # below it doubles of influences lie less than a quarter of a step off them


@final
@dataclass(frozen=True)
class WeightTable:
    """Log-weights at knots of the lattice, in steps of the measure."""

    weights: PiecewiseWeights

    def to_json(self) -> dict[str, Any]:
        """Return the table as plans and policies hold it; `from_json` reads it back."""
        return {"steps": list(self.weights.steps), "log_weights": [as_json(log) for log in self.weights.logs]}

    @classmethod
    def from_json(cls, data: object) -> "WeightTable":
        """Return the table of JSON data; raises ValueError, which says what is wrong, on anything else."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping) or set(data) != {"steps", "log_weights"}:
            raise ValueError("a table of steps and log_weights, as prdp design writes one")
        steps, logs = data["steps"], data["log_weights"]
        if not isinstance(steps, list | tuple) or not all(type(k) is int for k in steps):
            raise ValueError("a table whose steps are whole numbers")
        if not isinstance(logs, list | tuple) or any(isinstance(log, str) for log in logs):
            raise ValueError("a table whose log_weights are numbers")
        try:
            return cls(PiecewiseWeights(steps=tuple(steps), logs=tuple(map(exact, logs))))
        except TypeError:
            raise ValueError("a table whose log_weights are numbers") from None
        except ValueError as error:
            raise ValueError(f"a table of which {error}") from None


@final
@dataclass(frozen=True, kw_only=True)
class DesignedNoise(Noise):
    """Noise with the weights of a table: PRDP with the largest difference of log-weights a shift apart."""

    table_of_weights: PiecewiseWeights = field(repr=False)

    @property
    def weights(self) -> PiecewiseWeights:
        """The table's."""
        return self.table_of_weights

    def pure_loss_at(self, shift: Fraction) -> Fraction:
        """Return max over x of |w(|x|) − w(|x − shift|)|, exactly; between two steps that of the next one."""
        return pure_exactly(self.weights, -(-shift // self.step))

    def pure_loss(self, shift: Floats) -> Floats:
        """Return the same, rounded up."""
        steps = shift / float(self.step)
        off = np.where(steps < EXACT_STEPS, 1 - 2.0**-48, 1 + 2.0**-50)  # not a step too few: it may be a cliff
        return pure_of(self.weights, np.ceil(steps * off)) * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True, kw_only=True)
class Designed(Mechanism):
    """Noise whose weights on the lattice are a table, such as `prdp design` computes for limits.

    PRDP with P(Δ) = max over lattice points z of |w(|z|) − w(|z − Δ|)|, which a table decides exactly; PRzCDP with the
    tight loss of this very noise, certified from the table whoever made it (docs/design.md, section 3). Weights must
    not rise with the distance, so that losses grow with the influence.
    """

    weights: WeightTable = table(
        "log-weights at knots of the lattice: a file that prdp design wrote, or its table", WeightTable.from_json
    )
    policy: str = choice("tight", "paper", doc=POLICY)

    kind: ClassVar[str] = "designed"
    scale_parameter: ClassVar[str] = "weights"
    pure_formula: ClassVar[str | None] = "max |w(z) − w(z − Δ)|, w the table's log-weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_range("weights", "a table with lighter tails")

    @cached_property
    def form(self) -> Additive:
        """Added noise of the table."""
        noise = DesignedNoise(
            table_of_weights=self.weights.weights, scale=self.step, step=self.step, policy=self.policy
        )
        return Additive(noise=noise)
