"""Workflows without code: checked when they are stored, executed in turns like other workflows."""
