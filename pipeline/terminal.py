"""Progress for the people who run prdp."""

import sys
import time


class Progress:
    """Says on stderr what is being done and how long the run has taken so far (for the operator alone)."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, stage: str) -> None:
        """Name the stage that begins."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {stage}", file=sys.stderr, flush=True)
