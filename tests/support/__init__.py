"""What tests stand on: the real thing, started small."""
