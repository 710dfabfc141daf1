"""Whether machine and ledger are well, and what operators see."""
