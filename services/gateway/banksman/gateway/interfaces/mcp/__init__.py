"""The gateway as a server of the Model Context Protocol, at `POST /mcp`."""
