"""Checks of tool arguments against JSON Schemas, and of such schemas."""
