"""What a query's table is made of: layout of sums, totals, blocks and files."""
