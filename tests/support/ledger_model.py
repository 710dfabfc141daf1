"""What a release in the ledger should be, told by a simple model (tests/ledger/test_ledger_model.py)."""

from dataclasses import dataclass, field
from fractions import Fraction

SHARE_OF_UNIT = Fraction(1, 4)  # what a test of records left out costs: 1²/(2σ²) = ½


@dataclass
class Model:
    """What a release should be, told without reference to the fold under test."""

    status: str = "none"
    draws: int = 0
    charges: int = 0
    exposed: bool = False
    hold: bool = False
    approved: bool = False
    has_test: bool = False
    found: dict[str, bool] = field(default_factory=dict)  # by pin, under this and earlier reservations
    paid: int = 0  # tests of the present reservation
    alone: int = 0  # tests of earlier ones
    live: str | None = None
    attempts: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    @property
    def free(self) -> bool:
        return self.status == "none" or (self.status in ("aborted", "refused") and self.draws == 0)

    @property
    def open(self) -> bool:
        return self.status in ("reserved", "drawn") and self.live is None

    @property
    def cost(self) -> Fraction:
        """What is charged, in draws of a release without a test."""
        tests = self.alone + max(self.paid - (1 if self.charges else 0), 0)
        return self.charges * (1 + self.has_test * SHARE_OF_UNIT) + tests * SHARE_OF_UNIT

    def end_undrawn(self, status: str) -> None:
        if not self.draws:
            self.status, self.charges = status, 0
