"""Stored data of each released version that changed a stored format; today's code reads all of it.

A folder is named after its version. `messages` has a sample of each stored message with every field set, and
`system` a backup of a whole system, the keys that its data needs, and what its gateway returned.
"""
