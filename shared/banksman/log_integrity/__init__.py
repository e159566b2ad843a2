"""Detection of event logs that lost commits or were altered.

- `heads`: record of the last commit of each log, separate from the logs, and its comparison with the logs
- `guard`: that comparison before a process works, and after each reconnect
- `check`: validation of all commits, by their headers alone or with their bodies
- `damage`: the logs that are known to be damaged, shared by all services
"""
