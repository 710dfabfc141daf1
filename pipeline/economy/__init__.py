"""The synthetic microdata: an economy after public figures."""
