"""Diagnostics of a plan on the microdata themselves: all they make is confidential, and no release may rest on it."""
