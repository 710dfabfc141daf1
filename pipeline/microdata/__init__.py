"""The microdata: where they lie, how they are cut into pieces of work and read."""
