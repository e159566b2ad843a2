"""Counts what tenants consume."""
