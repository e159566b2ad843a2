"""Assistants."""
