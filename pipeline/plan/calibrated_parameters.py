"""A query's mechanism from its spec, its noise scale calibrated where the key `calibrate` stands in its place."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.calibrate import Family, offset_of, scale_of, solve
from pipeline.accounting.left_out import MOST
from pipeline.accounting.targets import AT_A_RECORD, BESIDE, TARGETS, CalibrationError, Target
from pipeline.base.names import hint
from pipeline.plan.designed import read_weights
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.named_files import public_file
from pipeline.plan.plan_schema import BY_PLAN, CalibrateSpec
from pipeline.plan.values import Spec
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import as_json
from udfs.records.statistics import Statistic


@dataclass(frozen=True)
class Use:
    """What a query uses its mechanisms for: totals of `statistic` in whole `step`s (None: not known).

    `measures` are the names of all in the plan, `coverage` is that of its intervals, `folder` the plan's; `drafted`:
    the plan has a key calibrate of its own, which chooses scales.
    """

    statistic: Statistic
    step: Fraction | None
    measures: Collection[str]
    coverage: Fraction
    folder: Path
    drafted: bool = False


def mechanism_of(spec: Spec, use: Use) -> Mechanism:
    """Return the mechanism of a spec without mistakes, its scale solved where it is to be calibrated.

    Where the plan chooses it, some mechanism of the family.

    Raises:
        ParameterError: where parameters do not go together.
        CalibrationError: where no scale reaches the target.
    """
    parameters = {name: value for name, value in spec if value is not None}
    for name, parameter in CATALOGUE[parameters["kind"]].parameters().items():
        if parameter.kind == "table" and isinstance(parameters[name], str):
            parameters[name] = read_weights(public_file(use.folder, parameters[name]), name, use.step or Fraction(1))
    step = use.step or Fraction(1)
    calibrate: CalibrateSpec | str | None = parameters.get("calibrate")
    if isinstance(calibrate, str):
        family = family_of(spec, step)
        mechanism = family.at(family.start)
        return build({"kind": family.kind, **family.fixed}, step) if mechanism is None else mechanism
    parameters.pop("calibrate", None)
    if calibrate is None:
        return build(parameters, step)
    return solve(parameters.pop("kind"), parameters, step, _target(calibrate, use))


def family_of(spec: Spec, step: Fraction, times: Fraction = Fraction(1)) -> Family:
    """Return the mechanisms of a spec whose scale is left open; their scales are `times` what their numbers say."""
    fixed = {name: value for name, value in spec if value is not None and name not in ("kind", "calibrate")}
    kind = dict(spec)["kind"]
    name = scale_of(CATALOGUE[kind])
    assert name is not None  # else its shape has no calibrate
    return Family(kind, name, tuple(sorted(fixed.items())), step, may_be_narrow=False, times=times)


def _target(spec: CalibrateSpec, use: Use) -> Target:
    given: dict[str, Any] = {name: value for name, value in spec if isinstance(value, Fraction)}
    given["coverage"] = use.coverage
    name = next(name for name in TARGETS if name in given)
    if name in AT_A_RECORD:
        given["influence"] = use.statistic.influence(spec.at or {})
    if spec.with_test:
        given[name] -= MOST[name]
    return Target.of(name, bound=spec.bound, **given)


def mechanism_mistakes(spec: Spec, use: Use, path: KeyPath) -> Iterator[Mistake]:
    """Yield rules that tie several parameters together, and what is wrong with calibration; the shape is right."""
    values = dict(spec)
    kind = CATALOGUE[values["kind"]]
    scale = scale_of(kind)
    calibrate: CalibrateSpec | str | None = values.get("calibrate")
    if scale is not None and calibrate is None and values[scale] is None:
        yield missing((*path, scale), " (or calibrate)")
        return
    if calibrate is None and offset_of(kind) is not None and values[str(offset_of(kind))] is None:
        yield missing((*path, str(offset_of(kind))), "")
        return
    if calibrate is not None:
        offset, solved, mistakes = offset_of(kind), {str(scale)}, list[Mistake]()
        if not isinstance(calibrate, str):
            mistakes += _calibrate_mistakes(calibrate, kind, use, (*path, "calibrate"))
            solved |= {offset} if offset is not None and calibrate.group_loss is not None else set()
        elif not use.drafted:
            rule = f"{BY_PLAN} needs the key calibrate of the plan, which says what the scale is chosen for"
            mistakes.append(Mistake((*path, "calibrate"), rule, absent=(("calibrate",),)))
        for name in sorted(solved):
            if values[name] is not None:
                mistakes.append(Mistake((*path, name), "must be left out beside calibrate, which sets it"))
        if offset is not None and offset not in solved and values[offset] is None:
            mistakes.append(missing((*path, offset), " (or group_loss of calibrate)"))
        yield from mistakes
        if mistakes or use.step is None:
            return
    try:
        mechanism = mechanism_of(spec, use)
        if mechanism.counts_only and not use.statistic.counts:
            yield Mistake((*path, "kind"), f"{mechanism.kind} is for count: records alone; for a sum choose log")
    except ParameterError as error:
        key = "calibrate" if calibrate is not None and error.parameter == scale else error.parameter
        yield Mistake((*path, key), f"must be {error.rule}")
    except CalibrationError as error:
        yield Mistake((*path, "calibrate"), str(error))


def _calibrate_mistakes(spec: CalibrateSpec, kind: type[Mechanism], use: Use, path: KeyPath) -> Iterator[Mistake]:
    keys = {name for name, value in spec if value is not None}
    if len(keys & set(TARGETS)) != 1:
        absent = tuple((*path, name) for name in TARGETS)
        yield Mistake(path, f"must have exactly one of {', '.join(TARGETS)}", absent=absent)
    elif not keys & set(AT_A_RECORD):
        if "at" in keys:
            yield Mistake((*path, "at"), "must be left out: it goes with loss; total says where an error is meant")
        if "total" not in keys and (not kind.additive or "relative_error" in keys):
            yield missing((*path, "total"), " (at which the error is meant: that of this kind grows with the total)")
    else:
        (name,) = keys & set(AT_A_RECORD)
        if "total" in keys:
            yield Mistake((*path, "total"), f"must be left out beside {name}, which is meant at a record")
        if "at" not in keys and use.statistic.measures:
            example = ", ".join(f"{measure}: 10" for measure in use.statistic.measures)
            yield missing((*path, "at"), f" (the record that may lose so much, such as {{{example}}})")
    for name, beside in BESIDE:
        if name in keys and beside not in keys:
            yield Mistake((*path, name), f"must be left out: it goes with {beside}")
    if spec.with_test:
        yield from _with_test_mistakes(spec, (*path, "with_test"))
    if "group_loss" in keys and "group" not in keys:
        yield missing((*path, "group"), " (the number of records of the group that may lose so much)")
    if spec.at is not None:
        yield from _at_mistakes(spec.at, use, (*path, "at"))


def _with_test_mistakes(spec: CalibrateSpec, path: KeyPath) -> Iterator[Mistake]:
    names = [name for name in MOST if getattr(spec, name) is not None]
    if not names or spec.delta is not None:
        yield Mistake(path, "must be left out: it goes with loss, or with epsilon without delta")
    for name in names:
        if not getattr(spec, name) > MOST[name]:
            rule = f"must be above {as_json(MOST[name])}, which the test of records left out alone costs"
            yield Mistake((*path[:-1], name), rule)


def _at_mistakes(at: Mapping[str, Fraction], use: Use, path: KeyPath) -> Iterator[Mistake]:
    for name in at:
        if use.measures and name not in use.measures:
            yield Mistake((*path, name), f"unknown measure{hint(name, use.measures, 'measure')}", unknown=True)
    for measure in use.statistic.measures:
        if measure not in at:
            yield Mistake(path, f"must also name {measure}, which the query sums", absent=((*path, measure),))
        elif not at[measure] > 0:
            yield Mistake((*path, measure), "must be above 0: a record of influence 0 loses nothing")
