"""Record batches: codes, contract, decoding, exact sums and influences."""
