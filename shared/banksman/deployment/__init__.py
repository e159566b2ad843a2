"""Users, streams and consumers of a NATS deployment, and the checks of their settings."""
