"""Checks of what clients and commands observed of a system, recorded as JSON lines.

`records` defines the lines, `folded` reads a file into one structure, `checks` verifies the promises, and
`python -m tests.support.history FILE` checks any recording, without the recorded system.
"""
