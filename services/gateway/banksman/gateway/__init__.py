"""The gateway: websocket, HTTP, web page, passthrough, and the one door for approval decisions."""
