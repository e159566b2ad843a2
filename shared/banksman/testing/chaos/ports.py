"""Ports that a process finds free again when it is restarted."""

from __future__ import annotations

from banksman.cli.up.ports import free_port


def lasting_port() -> int:
    """A free TCP port that no outgoing connection of this machine will be given while its owner is away."""
    return free_port()
