"""Who callers are: API keys, tickets for websockets; and the secrets of tenants for their tools."""
