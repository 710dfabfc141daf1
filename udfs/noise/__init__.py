"""Noise on a lattice: random bits, log-weights, moments and the sampler of every family."""
