"""From rows to records: duplicates, prepared and pinned microdata."""
