"""HTTP proxy for commands whose assistant's policy allows connections, under the rules of a fetch."""
