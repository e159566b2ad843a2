"""Interfaces."""
