"""Losses of noise: Rényi divergences and certified tight policies."""
