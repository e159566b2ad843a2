"""Oidc."""
