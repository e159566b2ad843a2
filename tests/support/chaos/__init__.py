"""The whole system as processes that a test controls, users of it, and the faults that it injects.

`fleet` starts and restarts the processes, `person` is a client that survives them, `plans` say what runs do,
`traffic` lets people start many of them and writes down what they see, `faults` strikes.
"""
