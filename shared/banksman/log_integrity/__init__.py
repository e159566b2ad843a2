"""Detection of event logs that lost commits or were altered.

- `heads`: record of the stored commits of each log, separate from the logs
- `survey`: comparison of that record with the server's counts; reads no commit
- `check`: validation of all commits, with their bodies
- `damage`: the logs that are known to be damaged, shared by all services
"""
