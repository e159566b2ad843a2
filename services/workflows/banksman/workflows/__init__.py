"""The workflows service: named actions that users start themselves. Each run has its own durable log."""
