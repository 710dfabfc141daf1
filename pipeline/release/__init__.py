"""A release, from its reservation to its manifest, and what officers and outsiders do with it."""
