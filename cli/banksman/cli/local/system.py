"""A system as data, which the supervisor runs. The module imports neither settings nor NATS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from banksman.cli.state import DataDir


class Stage(IntEnum):
    """Order in which processes stop: those that accept work before those that do it.

    Agents stop after tool-runners, because they store the results of the calls that end meanwhile.
    """

    GATEWAY = 1
    WORKFLOWS = 2
    TOOL_RUNNER = 3
    AGENT = 4
    MODEL_SERVER = 5
    NATS = 6


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    stage: Stage
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready_url: str
    """Responds with 200 when the process is ready."""
    service: str = ""
    """The service that the template process forks; empty for another program."""
    needed: bool = True
    """False if the system is useful without it."""
    longest_pause_s: float = 10.0
    """Longest pause in seconds before a restart; the pauses of a process that ends repeatedly double."""


@dataclass(frozen=True, slots=True)
class System:
    """All processes of one system, and how it starts and stops."""

    data: DataDir
    url: str
    """URL of the gateway."""
    nats_url: str
    monitoring_url: str
    server: ProcessSpec
    """The process of nats-server. All others start after it is ready."""
    services: tuple[ProcessSpec, ...]
    imported: tuple[str, ...]
    """Services that the template process imports."""
    common_environment: Mapping[str, str]
    """The variables of every process: no setting of a service, and no secret."""
    ready_timeout_s: float
    drain_timeout_s: float
    notices: tuple[str, ...]
    """Sentences that are printed when the system is ready."""
    as_json: bool
    """Whether the supervisor prints JSON."""
