"""The gateway: websocket, HTTP, NATS API, passthrough and web page over one service."""
