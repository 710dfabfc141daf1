"""What `prdp calibrate` finds: the scales that a plan asks for, and a single mechanism; no microdata are read."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.calibrate import Number, scale_of, solve
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.errors import PlanError, PrdpError
from pipeline.plan.load import load_plan
from pipeline.plan.model import OTHERS, Plan, Query
from pipeline.plan.text import read_text, written
from pipeline.report.accuracy import TOTALS, errors_at
from pipeline.report.explain import error_lines, in_words
from pipeline.report.losses import SIZES
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.numbers.exact import as_json, up_float, up_text

NO_SCALE = ("query", "part", "calibrate")  # keys of what is found for a mechanism; the other one is its scale


def resolved_plan(path: Path, out: Path | None) -> dict[str, Any]:
    """Return what is found for each `calibrate` of the plan `path`; write to `out` the plan that says it outright.

    That plan has the same digest: what a ledger has reserved under the one is released under the other, whatever later
    versions of the solver would find. Raises PlanError on a wrong plan, and where `out` is there or in another folder.
    """
    plan = load_plan(path)
    data = read_text(path).data
    found = [
        entry for query, part in zip(plan.queries, data["queries"], strict=True) for entry in _replaced(query, part)
    ]
    if out is not None:
        _write(written(data), out, plan)
    return {"plan_digest": plan.digest, "found": found, "out": None if out is None else str(out)}


def _replaced(query: Query, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replace every `calibrate` of a query's data by its solution, in place, and yield what was found."""
    for part in query.parts:
        holder, key = data, "mechanism"
        if part.name == OTHERS:
            holder, key = data["mechanism"], "others"
        elif part.name is not None:
            holder, key = data["mechanism"]["parts"], part.name
        spec: dict[str, Any] = holder[key]
        if "calibrate" not in spec:
            continue
        name = str(scale_of(type(part.mechanism)))
        scale = as_json(getattr(part.mechanism, name))
        holder[key] = {name if k == "calibrate" else k: scale if k == "calibrate" else v for k, v in spec.items()}
        of_part = {} if part.name is None else {"part": part.name}
        yield {"query": query.name} | of_part | {"calibrate": spec["calibrate"], name: scale}


def _write(text: str, out: Path, plan: Plan) -> None:
    if out.resolve().parent != plan.path.resolve().parent:
        raise PlanError(f"--out {out}: must lie in the plan's own folder, to which the plan's paths are relative")
    try:
        with out.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise PlanError(f"--out {out}: already there; choose another name") from None
    except OSError as error:
        raise PlanError(f"--out {out}: it cannot be written ({error.strerror})") from None
    if load_plan(out).digest != plan.digest:
        out.unlink()
        raise PrdpError(f"--out {out}: it would not be the same plan; write the scales by hand")


def shown_plan(found: Mapping[str, Any]) -> str:
    """Return the result of `resolved_plan` for people."""
    lines = [
        f"{_label(entry)}: {_words({k: v for k, v in entry.items() if k not in NO_SCALE})}"
        f"   for {_words(entry['calibrate'])}"
        for entry in found["found"]
    ] or ["the plan asks for no calibration: every scale is given"]
    lines.append(f"plan     {found['plan_digest']}")
    return "\n".join(lines if found["out"] is None else [*lines, f"written  {found['out']}"])


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_words(v) if isinstance(v, dict) else v}" for k, v in values.items())


def _label(entry: Mapping[str, Any]) -> str:
    return f"{entry['query']} ({entry['part']})" if "part" in entry else str(entry["query"])


def calibrated(kind: str, fixed: Mapping[str, Number], step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism that meets `target`; raises PlanError where there is none, with the best that can be had."""
    try:
        return solve(kind, fixed, step, target)
    except ParameterError as error:
        place = f"--{error.parameter}" if error.parameter in ("kind", "step") else f"--set {error.parameter}"
        raise PlanError(f"{place}: must be {error.rule}") from None
    except CalibrationError as error:
        raise PlanError(f"{kind}: {error}") from None


def told(mechanism: Mechanism, totals: tuple[float, ...], interval: Fraction) -> dict[str, Any]:
    """Return, as JSON, a mechanism, what records of growing influence lose, and its errors at some true totals."""
    at = (0.0,) if mechanism.additive else tuple(sorted({*TOTALS, *totals}))
    return {
        "mechanism": mechanism.describe(),
        "step": as_json(mechanism.step),
        "formula": mechanism.formula,
        "losses": [_loss(mechanism, size) for size in SIZES],
        "accuracy": [errors_at(mechanism, total, interval) for total in at],
    }


def _loss(mechanism: Mechanism, influence: int) -> dict[str, Any]:
    rho, pure = (of(Fraction(influence)) for of in (mechanism.loss_at, mechanism.pure_loss_at))
    assert rho is not None
    return {"influence": influence, "rho": up_float(rho), "epsilon": None if pure is None else up_float(pure)}


def shown(mechanism: dict[str, Any], interval: Fraction) -> str:
    """Return the result of `told` for people."""
    lines = [in_words(mechanism["mechanism"]), f"    P(Δ) = {mechanism['formula']}"]
    for loss in mechanism["losses"]:
        epsilon = "-" if loss["epsilon"] is None else up_text(Fraction(loss["epsilon"]))
        rho = up_text(Fraction(loss["rho"]))
        lines.append(f"    influence {loss['influence']:<12,} rho {rho:<12} epsilon {epsilon}")
    return "\n".join([*lines, *error_lines(mechanism["accuracy"], interval)])
