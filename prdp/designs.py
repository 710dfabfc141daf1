"""Noise designed for limits on what records may lose, without microdata (docs/design.md)."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pipeline.base.errors import PlanError, arg
from prdp.declared import Arg, Result, documented
from udfs.numbers.exact import bound_text, exact

if TYPE_CHECKING:
    import prdp.mechanisms
    from pipeline.planning.study import design as study

Number = int | float | str | Fraction
MINIMISED = "what is to be least: variance, mean_absolute_error or interval"
LIMIT = "what a record of influence X, and every smaller one, may lose"


class Design:
    """A designed noise: what `design` returns."""

    def __init__(self, designed: "study.Design") -> None:
        self._designed = designed

    @property
    def mechanism(self) -> "prdp.mechanisms.Mechanism":
        """The mechanism, `prdp.mechanisms.Designed`, with certified losses and errors."""
        from prdp import mechanisms  # noqa: PLC0415

        noise = self._designed.mechanism
        return mechanisms.Designed(weights=noise.weights, step=noise.step)

    def to_json(self) -> dict[str, Any]:
        """Return limits with certified losses, errors, a lower bound of what is minimised for every noise within the
        limits (`lower_bound`), and the best named noise beside it, as `prdp study design --json`.
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

    def __repr__(self) -> str:
        return f"<prdp.Design of the least {self.to_json()['minimise']} within {len(self.to_json()['limits'])} limits>"


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

    pairs = sorted((_exactly("influence", x), _exactly("rho", most)) for x, most in limits.items())
    return Design(run(Wish(tuple(pairs), minimise, _exactly("step", step), _exactly("coverage", coverage))))


@documented
def designed(
    out: Annotated[str | Path, Arg("file to write; it must not exist", "FILE", option=True)],
    *,
    limit: Annotated[Iterable[tuple[Number, Number]], Arg(LIMIT, "X:RHO", "limit", many=True, option=True)],
    minimise: Annotated[str, Arg(MINIMISED, "ERROR")] = "variance",
    coverage: Annotated[Number, Arg("the coverage of intervals", "C")] = "0.95",
    step: Annotated[Number, Arg("the step of the measure", "S", default="1")] = 1,
) -> Result:
    """Write designed noise to a file that a plan names, as `prdp study design`; return what it is."""
    pairs = list(limit)
    if len(dict(pairs)) < len(pairs):
        raise PlanError(f"{arg('limit')}: an influence stands twice")
    if Path(out).exists():
        raise PlanError(f"{arg('out', out)}: exists already; name another file")
    made = design(dict(pairs), minimise=minimise, step=step, coverage=coverage)
    made.save(out)
    return Result(made.to_json() | {"file": str(out)}, lambda facts: "\n".join(_lines(made, facts)))


def _lines(made: Design, facts: Mapping[str, Any]) -> list[str]:
    start, bound = facts["start"], facts["lower_bound"]
    lines = [f"table    {facts['file']}", "", "    influence   limit      certified loss (rho)"]
    for limit in facts["limits"]:
        certified = bound_text(made.mechanism.mechanism.loss_at(exact(limit["influence"])))
        lines.append(f"    {limit['influence']:<12}{limit['rho']:<11}{certified}")
    shape = ", ".join(f"{name} {start[name]}" for name in ("p", "d", "a", "sigma"))
    least = []
    if bound:
        excess = 100 * (facts[facts["minimise"]] / bound - 1)
        least = [f"    at most {excess:.2g} % above the least possible within the limits ({bound:.6g})"]
    return [
        *lines,
        "",
        f"    standard error {facts['variance'] ** 0.5:.6g}, mean absolute error {facts['mean_absolute_error']:.6g}, "
        f"{facts['coverage']} intervals {facts['interval']:.6g} wide",
        f"    {facts['minimise'].replace('_', ' ')}: {facts['ratio']:.4g} times that of the best exponential "
        "polylogarithmic noise",
        f"    within the same limits ({shape})",
        *least,
        "",
        f"in a plan: mechanism: {{kind: designed, weights: {Path(facts['file']).name}}}",
    ]


def _exactly(name: str, value: Number) -> Fraction:
    try:
        return exact(value)
    except (ValueError, TypeError):
        raise PlanError(f"design: {name} must be a number, not {value!r}") from None
