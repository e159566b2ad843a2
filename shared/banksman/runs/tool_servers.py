"""The processes of tool servers: each holds a lease of its own, and any of them may take a call."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from banksman.bus.kv import Entry
from banksman.contracts.calls import RunnerLease
from banksman.runs.ports import Placement


@dataclass(frozen=True, slots=True)
class Instance:
    """One live process of a tool server."""

    placement: Placement
    """The server, and the epoch that names the process; no other process ever has it."""
    tenant: str | None
    """Whose server it is; None for one that serves everybody."""
    load: int
    """Calls running or waiting."""
    serving: bool
    """False when it takes no more calls."""

    @classmethod
    def of(cls, entry: Entry[RunnerLease]) -> Self | None:
        """The process behind a lease; None for a runner's, or for a key of neither.

        Who it is comes from the key alone: a tenant may write what it likes into the value.
        """
        match entry.key.split("."):
            case [server, epoch] if epoch.isdecimal():
                tenant = None
            case [server, tenant, epoch] if epoch.isdecimal():
                pass
            case _:
                return None
        return cls(Placement(server, int(epoch)), tenant, entry.value.load, entry.value.serving)


def least_loaded(instances: Iterable[Instance]) -> Placement | None:
    """The process that should take the next call; any of those with the least load."""
    serving = [instance for instance in instances if instance.serving]
    if not serving:
        return None
    least = min(instance.load for instance in serving)
    return random.choice([instance.placement for instance in serving if instance.load == least])
