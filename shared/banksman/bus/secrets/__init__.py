"""Encryption, secrets of tenants, access tokens of MCP servers, and call tickets."""
