"""Servers of the Model Context Protocol whose tools a tenant's models may call."""
