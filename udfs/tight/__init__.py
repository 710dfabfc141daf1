"""The loss of additive noise itself, smaller than the paper's bound for all pure mechanisms (docs/tight.md)."""
