"""Logs and histories that have grown long."""
