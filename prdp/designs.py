"""Noise designed for limits on what records may lose, without microdata (docs/design.md)."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import PlanError
from udfs.numbers.exact import exact

if TYPE_CHECKING:
    import prdp.mechanisms
    from pipeline.planning.study import design as study

Number = int | float | str | Fraction


class Design:
    """A designed noise: what `design` returns."""

    def __init__(self, designed: "study.Design") -> None:
        self._designed = designed

    @property
    def mechanism(self) -> "prdp.mechanisms.Mechanism":
        """The mechanism, `prdp.mechanisms.Designed`, with certified losses and errors."""
        from prdp import mechanisms  # noqa: PLC0415

        found = self._designed.mechanism
        return mechanisms.Designed(weights=found.weights, step=found.step)

    def to_json(self) -> dict[str, Any]:
        """Return limits with certified losses, errors, a lower bound of what is minimised for every noise within the
        limits (`lower_bound`), and the best named noise beside it, as `prdp design --json`.
        """
        return self._designed.to_json()

    def save(self, path: str | Path) -> Path:
        """Write the table to a new file, which a plan names: `mechanism: {kind: designed, weights: FILE}`.

        Raises PlanError where the file cannot be made, or exists.
        """
        from pipeline.plan.plan_mechanisms import weights_file  # noqa: PLC0415

        text = weights_file(self._designed.mechanism.weights, self._designed.wish.step, self.to_json())
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise PlanError(f"{path}: exists already; name another file") from None
        except OSError as error:
            raise PlanError(f"{path}: cannot be written: {error.strerror}") from None
        return Path(path)

    @staticmethod
    def exactly(number: Number) -> Fraction:
        """Return a number as the decimal that was written."""
        return exact(number)


def design(
    limits: Mapping[Number, Number], *, minimise: str = "variance", step: Number = 1, coverage: Number = 0.95
) -> Design:
    """Return the additive noise with the least error found within limits on losses; reads no microdata.

    Args:
        limits: influence → the most, in zCDP ρ, that a record of it may lose; each binds all smaller ones too.
        minimise: "variance", "mean_absolute_error" or "interval", the width of intervals.
        step: The step of the measure, of which influences are whole multiples.
        coverage: That of intervals, between 0 and 1.

    Raises:
        PlanError: Where limits do not rise together, or no named noise keeps them to start from.
    """
    from pipeline.planning.study.design import Wish  # noqa: PLC0415
    from pipeline.planning.study.design import design as run  # noqa: PLC0415

    pairs = sorted((_number("influence", x), _number("rho", rho)) for x, rho in limits.items())
    return Design(run(Wish(tuple(pairs), minimise, _number("step", step), _number("coverage", coverage))))


def _number(name: str, value: Number) -> Fraction:
    try:
        return exact(value)
    except (ValueError, TypeError):
        raise PlanError(f"design: {name} must be a number, not {value!r}") from None
