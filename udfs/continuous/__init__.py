"""Closed forms of continuous noise: densities, tails, quantiles and moments, in doubles."""
