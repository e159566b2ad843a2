"""Operation."""
