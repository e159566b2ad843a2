"""Detecting what a store has lost of the event logs."""
