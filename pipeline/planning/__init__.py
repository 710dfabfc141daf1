"""Before a release, from public and synthetic facts alone."""
