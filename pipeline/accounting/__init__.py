"""What the queries of a plan, and the releases of a dataset, promise together."""
