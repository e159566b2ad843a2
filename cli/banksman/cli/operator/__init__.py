"""Commands for operators: streams, integrity, backup and restore, dead letters, keys, settings, doctor."""
