"""Errors, names, log, terminal, canonical JSON, pages and pictures: what every room uses."""
