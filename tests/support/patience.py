"""How long tests wait for what other processes do: long enough for a machine with many busy processes."""

PATIENCE = 900.0  # seconds; only a hang takes as long, so that no test's outcome depends on speed
