"""Commands for operators: streams, integrity, backup, dead letters, keys, doctor."""
