"""Plans: YAML in, a frozen and resolved plan with a canonical digest out."""
