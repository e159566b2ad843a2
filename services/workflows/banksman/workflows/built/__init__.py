"""Workflows without code: checked when they are stored, executed by the turns of all workflows."""
