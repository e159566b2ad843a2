"""The connections of a client: over NATS, or over a websocket and HTTP."""
