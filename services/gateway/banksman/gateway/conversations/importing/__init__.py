"""Reads files of exported conversations in a process of its own."""
