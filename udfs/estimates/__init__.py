"""Estimates from published totals alone: what noisy totals say together, and how far off it may be."""
