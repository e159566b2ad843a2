"""Detection of event logs that lost commits or were altered.

- `heads`: record of the stored commits of each log, separate from the logs, and its comparison with the
  server's counts, which reads almost no commit
- `check`: validation of all commits, with their bodies
- `damage`: the logs that are known to be damaged, shared by all services
"""
