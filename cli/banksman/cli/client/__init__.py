"""A terminal client of the gateway. It uses the same API as any other client."""
