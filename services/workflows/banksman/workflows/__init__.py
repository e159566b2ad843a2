"""The workflows service: named actions that users start themselves, each run a durable log of its own."""
