"""The time limit of waits in tests."""

WAIT_TIMEOUT_S = 60.0
"""Seconds until a wait in a test fails. Only failures, or machines under heavy load, take that long."""
