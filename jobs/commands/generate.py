"""prdp generate: synthetic microdata and all that a first release needs."""

from prdp.studies import made

CALL = made
EXAMPLE = "prdp generate --records 1000000 --out data"
