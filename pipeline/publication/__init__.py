"""After a release, from published files alone."""
