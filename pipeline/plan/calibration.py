"""The key `calibrate` of a mechanism: what is asked in place of its noise scale → the mechanism, or its mistakes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pipeline.accounting.calibrate import scale_of, solve
from pipeline.accounting.targets import (
    AbsoluteErrorTarget,
    CalibrationError,
    IntervalTarget,
    LossTarget,
    StandardErrorTarget,
    Target,
)
from pipeline.errors import nearest
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.schema import ASKED, CalibrateSpec, Spec
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.parameters import ParameterError
from udfs.records.statistics import Statistic


@dataclass(frozen=True)
class Use:
    """What a query uses its mechanisms for: totals of `statistic` in whole `step`s (None: not known).

    `measures` are the names of all in the plan, `coverage` is that of its intervals.
    """

    statistic: Statistic
    step: Fraction | None
    measures: Collection[str]
    coverage: Fraction


def mechanism_of(spec: Spec, use: Use) -> Mechanism:
    """Return the mechanism of a spec without mistakes, its scale solved where it is to be calibrated.

    Raises ParameterError where parameters do not go together, CalibrationError where what is asked cannot be had.
    """
    given = {name: value for name, value in spec if value is not None}
    step = use.step or Fraction(1)
    asked: CalibrateSpec | None = given.pop("calibrate", None)
    if asked is None:
        return build(given, step)
    return solve(given.pop("kind"), given, step, _target(asked, use))


def _target(asked: CalibrateSpec, use: Use) -> Target:
    if asked.loss is not None:
        influence = use.statistic.influence(asked.at or {})
        return LossTarget(loss=asked.loss, influence=influence)
    total = asked.total or Fraction(0)
    if asked.interval is not None:
        return IntervalTarget(interval=asked.interval, coverage=use.coverage, total=total)
    if asked.standard_error is not None:
        return StandardErrorTarget(standard_error=asked.standard_error, total=total)
    assert asked.mean_absolute_error is not None
    return AbsoluteErrorTarget(mean_absolute_error=asked.mean_absolute_error, total=total)


def mechanism_mistakes(spec: Spec, use: Use, path: KeyPath) -> Iterator[Mistake]:
    """Yield rules that tie several parameters together, and what is wrong with calibration; the shape is right."""
    given = dict(spec)
    scale = scale_of(CATALOGUE[given["kind"]])
    asked: CalibrateSpec | None = given.get("calibrate")
    if scale is not None and asked is None and given[scale] is None:
        yield missing((*path, scale), " (or calibrate)")
        return
    if asked is not None:
        found = list(_asked_mistakes(asked, CATALOGUE[given["kind"]], use, (*path, "calibrate")))
        if given[str(scale)] is not None:
            found.append(Mistake((*path, str(scale)), "must be left out beside calibrate, which finds it"))
        yield from found
        if found or use.step is None:
            return
    try:
        mechanism = mechanism_of(spec, use)
        if mechanism.counts_only and not use.statistic.counts:
            yield Mistake((*path, "kind"), f"{mechanism.kind} is for count: records alone; for a sum choose log")
    except ParameterError as error:
        place = "calibrate" if asked is not None and error.parameter == scale else error.parameter
        yield Mistake((*path, place), f"must be {error.rule}")
    except CalibrationError as error:
        yield Mistake((*path, "calibrate"), str(error))


def _asked_mistakes(asked: CalibrateSpec, kind: type[Mechanism], use: Use, path: KeyPath) -> Iterator[Mistake]:
    given = [name for name, value in asked if value is not None]
    if len([name for name in given if name in ASKED]) != 1:
        absent = tuple((*path, name) for name in ASKED)
        yield Mistake(path, f"must have exactly one of {', '.join(ASKED)}", absent=absent)
    elif "loss" not in given:
        if "at" in given:
            yield Mistake((*path, "at"), "must be left out: it goes with loss; total says where an error is meant")
        if "total" not in given and not kind.additive:
            yield missing((*path, "total"), " (at which the error is meant: that of this kind grows with the total)")
    else:
        if "total" in given:
            yield Mistake((*path, "total"), "must be left out beside loss, which is meant at a record")
        if "at" not in given and use.statistic.measures:
            example = ", ".join(f"{measure}: 10" for measure in use.statistic.measures)
            yield missing((*path, "at"), f" (the record that may lose so much, such as {{{example}}})")
    if asked.at is not None:
        yield from _at_mistakes(asked.at, use, (*path, "at"))


def _at_mistakes(at: Mapping[str, Fraction], use: Use, path: KeyPath) -> Iterator[Mistake]:
    for name in at:
        if use.measures and name not in use.measures:
            known = nearest(name, use.measures)
            yield Mistake((*path, name), f"unknown measure; nearest known measure: {known}", unknown=True)
    for measure in use.statistic.measures:
        if measure not in at:
            yield Mistake(path, f"must also name {measure}, which the query sums", absent=((*path, measure),))
        elif not at[measure] > 0:
            yield Mistake((*path, measure), "must be above 0: a record of influence 0 loses nothing")
