"""Settings of the tool-runner service, and the limits of what it runs."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from banksman.bus.connection import NatsSettings
from banksman.contracts.processes import MAX_PROCESSES
from banksman.contracts.tools import HostPattern
from banksman.contracts.wire import Token
from banksman.contracts.workspace_tools import (
    COMMAND_TIMEOUT_S,
    FETCH_TIMEOUT_S,
    MAX_COMMAND_TIMEOUT_S,
    MAX_OUTPUT_CHARS,
)
from banksman.contracts.workspaces import WorkspaceOffer
from banksman.runtime.settings import HealthSettings, Section, ServiceSettings
from banksman.runtime.tenants import TenantSettings
from banksman.tool_runner.identity import DEFAULT_SANDBOX_UID

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


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
    repositories: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """Addresses of git repositories from which workspaces may start, by tenant, with `*` for any characters.
    The tenant `*` is every tenant, as in `{"*": ["https://github.com/acme/*"]}`. Their hosts must be allowed
    too."""
    allow_commands: bool = False
    """If true, commands of an assistant whose policy has `network.commands` get a proxy that reaches the same
    hosts as its `web_fetch`. If false, no command has a network. Requires the sandbox `bwrap`."""
    registries: tuple[HostPattern, ...] = ()
    """Hosts of package registries from which the policy of a tenant may let its commands install. Empty for
    none. Requires the sandbox `bwrap`."""


DEFAULT_IMAGE = "python:3.11-slim-bookworm"
"""Image of containers if no setting names one and the runner runs in no container."""


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


def _absolute(value: str) -> str:
    path = PurePosixPath(value)
    if not path.is_absolute() or value != str(path) or ".." in path.parts or "\0" in value or ":" in value:
        raise ValueError("an absolute path without `..` and `:`, such as /opt/node-22")
    return value


def _showable(value: str) -> str:
    if value == "/" or _absolute(value).split("/")[1] in _OWN_DIRECTORIES:
        raise ValueError(f"a path that is not / and not in {', '.join(_OWN_DIRECTORIES)}")
    return value


_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_OWN_DIRECTORIES = ("dev", "proc", "sys", "workspace")
"""Directories of the root that a sandbox mounts itself."""


class Toolchain(Section):
    """Programs that the commands of an assistant find besides the usual ones, in either sandbox."""

    paths: tuple[Annotated[str, AfterValidator(_showable)], ...] = ()
    """Directories and files of this machine that the sandbox `bwrap` shows read-only, at the same paths. The
    user of commands must be able to read them."""
    image: str | None = None
    """Image of the containers of the sandbox `docker`; see `DockerSettings.image`, which None means."""
    search: tuple[Annotated[str, AfterValidator(_absolute)], ...] = ()
    """Directories that come first in PATH."""
    variables: dict[_Variable, str] = Field(default_factory=dict)
    """Further variables of its commands. They are no secrets: each command can read them."""


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


class ProcessSettings(Section):
    """Processes that outlive their call: commands in the background, and sessions."""

    idle_s: float = Field(default=600.0, gt=0)
    """Seconds without a call of the conversation after which its sandbox ends with all its processes."""
    per_conversation: int = Field(default=8, ge=0, le=MAX_PROCESSES)
    """Maximum number of running processes of one conversation; 0 disables them. They share the memory and the
    processors of one command."""
    total: int = Field(default=64, ge=1)
    """Maximum number of running processes, which tenants share."""
    max_s: float = Field(default=28_800.0, gt=0)
    """Longest duration of a process in seconds; also its limit of processor time."""


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxLimits(_Limits):
    """Limits of one command.

    At a limit of the kernel (an rlimit or a file system size), the system call of the command fails. At a
    limit of the runner, the whole process tree is killed and the outcome names the limit.
    """

    timeout_s: float = Field(default=COMMAND_TIMEOUT_S, gt=0, le=MAX_COMMAND_TIMEOUT_S)
    """Default time-out of a command, in seconds of wall-clock time."""
    max_timeout_s: float = Field(default=MAX_COMMAND_TIMEOUT_S, gt=0, le=MAX_COMMAND_TIMEOUT_S)
    """Longest time-out that a command may request, in seconds."""
    data_bytes: int = Field(default=GIB, ge=16 * MIB)
    """RLIMIT_DATA of each process. RLIMIT_AS is not set: V8, the JVM and Go reserve far more address space
    than they use."""
    memory_bytes: int = Field(default=GIB, ge=16 * MIB)
    """Proportional set size of all processes of the call together; above it, the call is killed."""
    max_processes: int = Field(default=64, ge=2)
    """RLIMIT_NPROC, counted in the user namespace of the call."""
    file_size_bytes: int = Field(default=64 * MIB, ge=1)
    """RLIMIT_FSIZE: the largest file a process may write."""
    cpu_s: int = Field(default=60, ge=1)
    """RLIMIT_CPU of each process in seconds; a longer time-out of the command raises it."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors that all processes of the call together may use, if a cgroup v2 is delegated to the runner;
    None for no limit."""
    max_open_files: int = Field(default=256, ge=16)
    max_unlinked_bytes: int = Field(default=256 * MIB, ge=1)
    """Bytes of deleted files that processes of the call still have open; above it, the call is killed. A scan
    of the workspace does not see these files."""
    tmp_bytes: int = Field(default=64 * MIB, ge=1)
    """Size of the call's own `/tmp`."""
    home_bytes: int = Field(default=MIB, ge=1)
    """Size of the call's own `/home`."""
    shm_bytes: int = Field(default=16 * MIB, ge=1)
    """Size of the call's own `/dev/shm`."""
    max_command_bytes: int = Field(default=96 * KIB, ge=1, le=128 * KIB - 1)
    """Length of a command in UTF-8. The kernel refuses an argument of 128 KiB (MAX_ARG_STRLEN, execve(2))."""
    max_output_bytes: int = Field(default=256 * MIB, ge=1)
    """Standard output and error together; above it, the call is killed."""
    max_stored_output_bytes: int = Field(default=12 * MIB, ge=0, le=16 * MIB)
    """Bytes of a long output that are stored; further bytes are only counted."""
    max_concurrent_calls: int = Field(default_factory=lambda: max(2, 2 * (os.cpu_count() or 1)), ge=1)
    """Concurrent commands; further commands wait. Above twice the number of cores, only the latency grows."""
    max_sessions: int = Field(default=8, ge=1)
    """Sessions with MCP servers that stay open between calls, which tenants share. A session above it ends
    with its call."""
    session_idle_s: float = Field(default=600.0, gt=0)
    """Seconds without a call after which a session with an MCP server is closed, and its program ended."""
    watchdog_interval_s: float = Field(default=0.25, gt=0)
    """Seconds between two measurements of a running call."""
    kill_wait_s: float = Field(default=2.0, gt=0)
    """Seconds to wait for the end of a killed process tree before the sweep takes over."""


class WorkspaceLimits(_Limits):
    """Limits of one workspace. Above them, writes are refused and a command that grows it is killed.

    Above twice the limit, and at least 256 MiB or 10,000 entries above it, no command runs.
    """

    max_bytes: int = Field(default=GIB, ge=1)
    """Allocated disk blocks in bytes; holes in sparse files do not count, and a hard link counts once."""
    max_entries: int = Field(default=100_000, ge=1)
    """Files, directories and links."""
    max_depth: int = Field(default=128, ge=1)
    """Levels of directories; a deeper tree counts as too large."""
    scan_share: float = Field(default=0.1, gt=0, le=1)
    """Maximum share of the time that is spent on measuring one workspace. It may be one half while the file
    system loses so much free space that the workspace may exceed a limit."""


class FetchLimits(_Limits):
    timeout_s: float = Field(default=FETCH_TIMEOUT_S, gt=0, le=FETCH_TIMEOUT_S)
    """Seconds from the first look-up to the last byte, including redirects."""
    max_redirects: int = Field(default=5, ge=0)
    max_received_bytes: int = Field(default=2 * MIB, ge=1)
    """Bytes of the body as received; the rest is not read."""
    max_body_bytes: int = Field(default=2 * MIB, ge=1)
    """Bytes of the body after decompression; the rest is not inflated."""


class ProxyLimits(_Limits):
    """Limits of one command's proxy, for assistants whose policy grants a network."""

    max_bytes: int = Field(default=256 * MIB, ge=1)
    """Bytes in both directions of all connections together; above it, every connection is closed."""
    max_connections: int = Field(default=32, ge=1)
    """Concurrent connections; further connections wait."""
    max_total_connections: int = Field(default=2_000, ge=1)
    """Connections of the whole command; further connections are refused."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds until the head of a request must be complete."""
    idle_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds without a byte from the server after which the connection is closed."""


class MarkdownLimits(_Limits):
    """Limits of one conversion to Markdown; above them, the page is returned unchanged with a note."""

    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds of wall-clock time, including the wait for a slot."""
    cpu_s: int = Field(default=8, ge=1)
    """RLIMIT_CPU of the process, in seconds."""
    memory_bytes: int = Field(default=256 * MIB, ge=64 * MIB)
    """RLIMIT_DATA of the process. A page of 2 MiB needs about 60 MiB."""
    max_markdown_bytes: int = Field(default=8 * MIB, ge=1)
    """Length of the Markdown in UTF-8."""
    max_concurrent: int = Field(default=2, ge=1)
    """Concurrent conversions; further pages wait."""


class RunnerLimits(_Limits):
    max_output_chars: int = Field(default=MAX_OUTPUT_CHARS, ge=200, le=MAX_OUTPUT_CHARS)
    """Characters of output in one result: standard output and error together, one page of a file, or the body
    of a response."""
    sandbox: SandboxLimits = SandboxLimits()
    workspace: WorkspaceLimits = WorkspaceLimits()
    fetch: FetchLimits = FetchLimits()
    markdown: MarkdownLimits = MarkdownLimits()
    proxy: ProxyLimits = ProxyLimits()


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
    """Concurrent `web_fetch` and `web_search` calls, which tenants share; further calls wait. The limit of
    commands is `limits.sandbox.max_concurrent_calls`."""
    max_tenant_output_bytes: int = Field(default=128 * MIB, ge=16 * MIB)
    """Bytes of whole outputs of one tenant in the object store; above it, its oldest outputs are removed."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that running calls get when the process stops, before they are killed. Together with five
    seconds for their results, `snapshots.drain_s` and two seconds for the lease, the process ends within 30
    seconds."""
    docker: DockerSettings = DockerSettings()
    toolchains: dict[Token, Toolchain] = Field(default_factory=dict)
    """Toolchains by the name that assistants choose."""
    snapshots: SnapshotSettings = SnapshotSettings()
    limits: RunnerLimits = RunnerLimits()
    egress: EgressSettings = EgressSettings()
    processes: ProcessSettings = ProcessSettings()

    @property
    def offer(self) -> WorkspaceOffer:
        return WorkspaceOffer(
            toolchains=tuple(self.toolchains),
            repositories=self.egress.repositories,
            registries=self.egress.registries,
        )


class ToolRunnerServiceSettings(ServiceSettings):
    nats: NatsSettings = NatsSettings()
    tool_runner: ToolRunnerSettings = ToolRunnerSettings()
    tenants: TenantSettings = TenantSettings()

    def running_calls(self, tenant: str) -> int | None:
        """Return the limit of a tenant's concurrent commands, and of its fetches; None for its share."""
        return self.tenants.value_of(tenant, lambda limits: limits.running_calls)
