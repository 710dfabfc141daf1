"""The public site of a release: static pages and data files, of published tables, the plan and public lists alone."""
