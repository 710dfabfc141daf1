"""The public pages of a release."""
