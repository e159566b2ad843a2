"""The whole system as processes that a test controls, its users, and the faults that a test injects.

`fleet` starts and restarts the processes, `person` is a client that survives restarts, `plans` defines runs,
`traffic` lets users start many runs and records what they receive, and `faults` injects faults.
"""
