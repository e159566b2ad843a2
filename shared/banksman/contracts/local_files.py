"""Files with which programs on this machine find a system started with `banksman up`.

A module of its own: the supervisor imports it, and must not import pydantic.
"""

CONTEXT_FILE = "nats-context.json"
"""File in the data directory with the address of the NATS server and the seed file of local services, in the
format of the `nats` command."""
