"""Processes that serve tools and workflows over NATS."""
