"""The durable accountant: what was reserved, drawn, charged and published, in one append-only table."""
