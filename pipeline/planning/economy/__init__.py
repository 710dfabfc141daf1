"""Synthetic establishments, after published figures."""
