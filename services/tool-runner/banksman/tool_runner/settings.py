"""Settings of the tool-runner service."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from banksman.bus.connection import NatsSettings
from banksman.contracts.tools import HostPattern
from banksman.contracts.wire import Token
from banksman.runtime.settings import HealthSettings, Section, ServiceSettings
from banksman.runtime.tenants import TenantSettings
from banksman.tool_runner.identity import DEFAULT_SANDBOX_UID
from banksman.tool_runner.limits import MIB, RunnerLimits


def _address_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError as error:
        raise ValueError("an address and a port, such as 10.0.0.5:8080") from error
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("an address and a port, such as 10.0.0.5:8080")
    return value


class EgressSettings(Section):
    """Hosts that `web_fetch` may reach; commands may too if the operator and the assistant allow it."""

    allow_hosts: tuple[HostPattern, ...] = ("*",)
    """Allowed hosts, such as `example.org`, `*.example.org` or `example.org:443`. Other hosts are refused,
    also in redirects. An assistant's own lists can only narrow this list."""
    deny_hosts: tuple[HostPattern, ...] = ()
    """Refused hosts; these override `allow_hosts`."""
    allow_private_addresses: tuple[Annotated[str, AfterValidator(_address_and_port)], ...] = ()
    """Private servers that may be fetched from, as `address:port`. A page on another host cannot redirect to
    them."""
    allow_commands: bool = False
    """If true, commands of an assistant whose policy has `network.commands` get a proxy that reaches the same
    hosts as its `web_fetch`. If false, no command has a network. Requires the sandbox `bwrap`."""


class DockerSettings(Section):
    """Containers of workspaces if `sandbox` is `docker`. `DOCKER_HOST` names the engine."""

    image: str | None = None
    """Image of the containers. It needs bash, coreutils, findutils and Python 3.9 or newer, and must not
    declare volumes. It is never pulled. None means the image of the runner's own container, or
    `python:3.11-slim-bookworm` if the runner runs in none."""
    runtime: str | None = None
    """The engine's name of an OCI runtime, such as `runsc`. None means the engine's default."""
    host_dir: Path | None = None
    """Directory of the workspaces on the engine's host. None means the runner's own path or, if the runner
    runs in a container, the path that the engine reports for that container's mounts."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors that one container may use."""
    idle_s: float = Field(default=300.0, gt=0)
    """Seconds without a command after which the container of a workspace is removed."""
    max_containers: int = Field(default=32, ge=1)
    """Maximum number of containers. Before another one starts, the longest idle one is removed. A container
    with a running command is never removed, so there may be as many containers as concurrent commands."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds within which a container must start; otherwise the call is refused."""
    engine_timeout_s: int = Field(default=20, ge=1)
    """Seconds within which the engine must complete a request; otherwise it counts as unavailable."""


class SnapshotSettings(Section):
    """When workspaces are snapshotted, so that they survive the loss of their runner."""

    idle_s: float = Field(default=30.0, ge=0.05)
    """Seconds without a call or an upload after which a changed workspace is snapshotted."""
    drain_s: float = Field(default=8.0, ge=0)
    """Seconds for snapshots at the end of the process, after its calls have ended."""
    evict_after_s: float | None = Field(default=None, gt=0)
    """Seconds without a call after which the files of a workspace are deleted from the runner. The next call
    restores them from the snapshot. None disables this."""
    collect_every_s: float = Field(default=3600.0, gt=0)
    """Seconds between two searches for interrupted snapshots in the object store."""


class ToolRunnerSettings(HealthSettings):
    workspaces_dir: Path | None = None
    """Directory of the workspaces. None means `data_dir/workspaces`, or a directory below
    `/var/lib/banksman` if the runner is root and the sandbox user cannot reach `data_dir`."""
    sandbox: Literal["bwrap", "docker"] = "bwrap"
    """
    bwrap   one bubblewrap sandbox per command, on this machine or in the runner's own container
    docker  one container per workspace, created by a Docker engine
    """
    sandbox_uid: int = Field(default=DEFAULT_SANDBOX_UID, gt=0)
    """User id of commands if the runner is root; otherwise commands run as the runner's own user."""
    runner: Token | None = None
    """Id of this runner if the key in `nats` belongs to its own user `tool-runner-{id}`. None if the key
    belongs to the shared user `tool-runner`; then the first start creates an id."""
    queue_capacity: int = Field(default=256, ge=1, le=100_000)
    """Maximum number of running and waiting calls, which tenants share; further calls get the reply
    `busy`."""
    concurrent_fetches: int = Field(default=32, ge=1, le=1000)
    """Concurrent `web_fetch` calls, which tenants share; further calls wait. The limit of
    commands is `limits.sandbox.max_concurrent_calls`."""
    max_tenant_output_bytes: int = Field(default=128 * MIB, ge=16 * MIB)
    """Bytes of whole outputs of one tenant in the object store; above it, its oldest outputs are removed."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that running calls get when the process stops, before they are killed. Together with five
    seconds for their results, `snapshots.drain_s` and two seconds for the lease, the process ends within 30
    seconds."""
    docker: DockerSettings = DockerSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    limits: RunnerLimits = RunnerLimits()
    egress: EgressSettings = EgressSettings()


class ToolRunnerServiceSettings(ServiceSettings):
    nats: NatsSettings = NatsSettings()
    tool_runner: ToolRunnerSettings = ToolRunnerSettings()
    tenants: TenantSettings = TenantSettings()

    def running_calls(self, tenant: str) -> int | None:
        """Return the limit of a tenant's concurrent commands, and of its fetches; None for its share."""
        return self.tenants.value_of(tenant, lambda limits: limits.running_calls)
