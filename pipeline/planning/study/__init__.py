"""Mechanisms beside each other, and beside other practices."""
