"""What agents derive from the logs of all conversations: damaged logs, log heads, and usage of tenants."""
