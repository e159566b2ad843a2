"""Operator."""
