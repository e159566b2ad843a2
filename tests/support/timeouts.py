"""How long tests wait."""

WAIT_TIMEOUT_S = 30.0
"""Seconds until a test gives up waiting. Only a failure, or a machine with much other work, takes as long."""
