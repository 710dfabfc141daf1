"""A whole plan tried on synthetic microdata: drawn errors, losses, what it needs, and a page to play with."""
