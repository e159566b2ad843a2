"""The whole system as processes under a test's hand, people who use it, and what befalls it.

`fleet` starts and restarts the processes, `person` is a client that survives them, `plans` say what runs do,
`traffic` lets people start many of them and writes down what they see, `faults` strikes.
"""
