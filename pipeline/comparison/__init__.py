"""Mechanisms of all families at equal accuracy, and what records of public sizes would lose under each."""
