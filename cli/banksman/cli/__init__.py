"""The command line, in three parts that do not import each other.

- `local`: starts and ends the whole system on one machine, and runs single services
- `operator`: provisions, checks, backs up and repairs a deployment
- `client`: uses a gateway as any client does

Each other module is shared by at least two of the parts.
"""
