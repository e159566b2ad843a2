"""Mcp servers."""
