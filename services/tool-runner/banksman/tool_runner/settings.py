"""Settings of the tool-runner service."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from banksman.bus.connection import NatsSettings
from banksman.contracts.network import HostPattern
from banksman.contracts.wire import Token
from banksman.runtime.settings import HealthSettings, Section, ServiceSettings
from banksman.tool_runner.identity import DEFAULT_SANDBOX_UID
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.docker_settings import DockerSettings


def _address_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError as error:
        raise ValueError("an address and a port, as in 10.0.0.5:8080") from error
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("an address and a port, as in 10.0.0.5:8080")
    return value


class EgressSettings(Section):
    """Where calls may connect to: `web_fetch`, and commands where that is permitted and granted."""

    allow_hosts: tuple[HostPattern, ...] = ("*",)
    """Hosts as `example.org`, `*.example.org` or `example.org:443`; one that no pattern matches is refused,
    at every redirect too. An assistant's own lists narrow these and cannot widen them."""
    deny_hosts: tuple[HostPattern, ...] = ()
    """Hosts that are refused though allowed."""
    allow_private_addresses: tuple[Annotated[str, AfterValidator(_address_and_port)], ...] = ()
    """`address:port` of servers of your own that may be fetched from though their address is not public.
    A page elsewhere cannot redirect to one."""
    allow_commands: bool = False
    """True lets an assistant whose policy says `network.commands` give its commands a proxy, which leads
    where its `web_fetch` leads. False keeps every command without a network. Needs the sandbox `bwrap`."""


class CopySettings(Section):
    """When copies of workspaces are made, by which they outlive their runner."""

    idle_s: float = Field(default=30.0, ge=0.05)
    """Seconds without a call or an upload after which a workspace that changed is copied."""
    drain_s: float = Field(default=8.0, ge=0)
    """Seconds for copies at the end of the process, after its calls have ended."""
    evict_after_s: float | None = Field(default=None, gt=0)
    """Seconds without a call after which the files of a workspace are removed here and are only in its copy,
    from which the next call restores them. None keeps them."""
    collect_every_s: float = Field(default=3600.0, gt=0)
    """Seconds between two searches for what interrupted copies left in the object store."""


class ToolRunnerSettings(HealthSettings):
    """How calls are executed."""

    workspaces_dir: Path | None = None
    """Where workspaces are kept. None takes `data_dir/workspaces`, or a directory below `/var/lib/banksman`
    when the runner is root and the sandbox user cannot reach `data_dir`."""
    sandbox: Literal["bwrap", "docker"] = "bwrap"
    """
    bwrap   bubblewrap, one for each command, on this machine or in the runner's own container
    docker  a container for each workspace, by a Docker engine
    """
    sandbox_uid: int = Field(default=DEFAULT_SANDBOX_UID, gt=0)
    """The user that commands run as when the runner is root; otherwise they run as the runner's own."""
    runner: Token | None = None
    """The id of this runner when the key in `nats` is its own, of the user `tool-runner-{id}`. None when the
    key is of the user `tool-runner` that runners share; then the id is made at the first start."""
    queue_capacity: int = Field(default=256, ge=1, le=100_000)
    """Calls running and waiting; above it the answer is `busy`."""
    concurrent_fetches: int = Field(default=32, ge=1, le=1000)
    """`web_fetch` calls at a time; more wait. Commands have `limits.sandbox.max_concurrent_calls`."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that running calls get at the end of the process before they are killed. With five for their
    results, those for copies and two for the lease, the process has ended within 30."""
    docker: DockerSettings = DockerSettings()
    copies: CopySettings = CopySettings()
    limits: RunnerLimits = RunnerLimits()
    egress: EgressSettings = EgressSettings()


class ToolRunnerServiceSettings(ServiceSettings):
    """All sections that a tool-runner reads."""

    nats: NatsSettings = NatsSettings()
    tool_runner: ToolRunnerSettings = ToolRunnerSettings()
