"""Plans tried on synthetic microdata."""
