"""Whether a ledger, and the machine that runs prdp, are well: what was found, and how to mend it."""
