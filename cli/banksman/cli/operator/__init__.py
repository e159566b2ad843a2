"""Commands for operators: streams, integrity, backup and restore, dead letters, keys, settings, doctor.

All raise `BadInput` for an invalid setting. Those that use NATS raise `Unavailable` if it cannot be reached,
and `NotReady` if a stream is missing.
"""
