"""The files that users load, and other formats."""
