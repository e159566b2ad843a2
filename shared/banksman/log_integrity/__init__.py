"""Detection of event logs that lost commits or were altered.

- `heads`: record of the last commit of each log, separate from the logs, and its comparison with the logs
- `check`: validation of all commits, by their headers alone or with their bodies
- `damage`: the check before a process works, and the damaged logs, shared by all services
"""
