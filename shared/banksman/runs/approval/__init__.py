"""Requests that a user decides: which calls need approval, and the signed replies."""
