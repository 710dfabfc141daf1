"""What an operator's own tools see of runs and ledgers: metrics and traces; confidential, and off by default."""
