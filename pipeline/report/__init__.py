"""The public page of a release."""
