"""Chat formats."""
