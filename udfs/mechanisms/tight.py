"""The policy that additive mechanisms of heavy tails state: the paper's, or their noise's own (docs/tight.md)."""

from fractions import Fraction
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from udfs.exact import up_float
from udfs.heavy import GeneralizedGaussianWeights
from udfs.mechanisms.additive import loss_of_pure, loss_of_pure_at
from udfs.mechanisms.base import Mechanism
from udfs.tight.curve import curve_at
from udfs.tight.loss import MOST_STEPS, renyi_curve
from udfs.weights import LaplaceWeights

Floats = NDArray[np.float64]
NEAREST = 1 - 2.0**-48  # more than what a double of an influence, which may be rounded up, lies off a whole step
FEW = 64  # influences for which the whole curve is not computed

TIGHT = "sup D_α(Z ‖ Z + Δ)/α over α > 1, Z being the noise on its lattice (docs/tight.md); at most "


def states_tight(mechanism: Mechanism) -> bool:
    """Return whether the policy is the tight one."""
    return getattr(mechanism, "policy", None) == "tight"


def formula_by_policy(mechanism: Mechanism) -> str:
    """Return the policy function."""
    return (TIGHT if mechanism.tabled else "") + f"tanh(P/2)·P with the pure loss P = {mechanism.pure_formula}"


def loss_by_policy_at(mechanism: Mechanism, influence: Fraction) -> Fraction:
    """Return the paper's tanh(P/2)·P, or the smaller tight loss; an influence between two steps has the next one's."""
    paper = loss_of_pure_at(mechanism, influence)
    if not mechanism.tabled:
        return paper
    steps = ceil(influence / mechanism.step)
    curve = mechanism.__dict__.get("loss_curve")
    bound = curve_at(mechanism.weights(), steps, mechanism.fineness) if curve is None else curve.at(steps)
    return paper if bound >= paper else Fraction(bound)


def loss_by_policy(mechanism: Mechanism, influence: Floats) -> Floats:
    """Return the same of whole arrays: of multiples of the step, whose doubles may lie three last bits off them."""
    paper = loss_of_pure(mechanism, influence)
    if not mechanism.tabled:
        return paper
    steps = np.ceil(influence / float(mechanism.step) * NEAREST)
    return np.minimum(paper, _bounds(mechanism, steps))


def renyi_by_policy(mechanism: Mechanism, influence: Fraction, orders: Floats) -> Floats:
    """Return upper bounds of D_α: what the losses say, and of the tight policy those of the noise on its lattice."""
    by_losses = Mechanism.renyi_at(mechanism, influence, orders)
    if not states_tight(mechanism):
        return by_losses
    weights = mechanism.weights()
    if isinstance(weights, LaplaceWeights):
        weights = GeneralizedGaussianWeights(p=Fraction(1), scale=weights.scale)
    steps = ceil(influence / mechanism.step) * mechanism.fineness
    return np.minimum(by_losses, renyi_curve(weights, steps, orders)) if steps <= MOST_STEPS else by_losses


def _bounds(mechanism: Mechanism, steps: Floats) -> Floats:
    if "loss_curve" not in mechanism.__dict__ and steps.size <= FEW:
        weights, unit = mechanism.weights(), mechanism.fineness
        bounds = [curve_at(weights, int(n), unit) if n < inf else inf for n in steps.flat]
        return np.array([up_float(Fraction(b)) if b < inf else inf for b in bounds]).reshape(steps.shape)
    curve = mechanism.loss_curve
    if curve is None:
        raise TypeError(f"{mechanism.kind} has no curve of losses")
    return curve.over(steps)
