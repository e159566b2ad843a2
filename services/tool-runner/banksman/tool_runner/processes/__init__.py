"""Processes of conversations that outlive a call."""
