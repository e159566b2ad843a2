"""The workflows service: named actions that users start themselves, each run with its own durable log."""
