"""Symmetric α-stable noise, 1 ≤ α < 2: its density with proven errors, its log-weights, its certified policy."""
