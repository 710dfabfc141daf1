"""The microdata: where they lie, how they are pinned and read, and a synthetic set to work on."""
