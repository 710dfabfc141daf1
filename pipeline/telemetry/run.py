"""A run as an operator's tools see it: its stages, how long they took, and how it ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage of a run by the name that its log has; `began` and `ended` in seconds since 1970 (UTC)."""

    name: str
    began: float
    ended: float
    failed: bool


@dataclass(frozen=True)
class Run:
    """A run of `prdp release`: of which plan file, and, as far as it came, of which release and attempt."""

    plan: str
    release: str | None
    attempt: str | None
    began: float
    ended: float
    exit_code: int
    stages: tuple[Stage, ...]
