"""Exact, directed and reproducible arithmetic."""
