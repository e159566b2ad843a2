"""The interfaces of the gateway: each makes the same operations available in its own protocol."""
