"""Mechanisms and their policies: what noise is drawn, and what loss each record is promised for it."""
