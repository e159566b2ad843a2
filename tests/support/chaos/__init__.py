"""The whole system as processes that a test controls, its users, and the faults that a test injects.

`fleet` starts and restarts the processes, `simulated_user` is a client that survives restarts, `plans`
defines runs, `traffic` starts many runs and records what their users receive, and `faults` injects faults.
"""
