"""How long tests wait."""

PATIENCE_S = 30.0
"""Seconds that a test waits for what must come; they pass in a failure, or where there is much to do."""
