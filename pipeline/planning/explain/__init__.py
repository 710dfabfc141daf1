"""What a plan promises, whether its limits hold, and what would mend it."""
