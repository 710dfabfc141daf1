"""Products: the files that users load, made of published releases and public lists alone."""
