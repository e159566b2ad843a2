"""Bwrap."""
