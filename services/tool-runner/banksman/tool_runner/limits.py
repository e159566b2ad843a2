from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field

from banksman.contracts.workspace_tools import (
    COMMAND_TIMEOUT_S,
    FETCH_TIMEOUT_S,
    MAX_COMMAND_TIMEOUT_S,
    MAX_OUTPUT_CHARS,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _default_concurrency() -> int:
    return max(2, 2 * (os.cpu_count() or 1))


class SandboxLimits(_Limits):
    """What one command may use.

    At a limit of the kernel the command's own system call fails; at a limit of ours the whole process tree is
    killed and the outcome names the reason.
    """

    timeout_s: float = Field(default=COMMAND_TIMEOUT_S, gt=0, le=MAX_COMMAND_TIMEOUT_S)
    """Wall clock of a command that asks for no other."""
    max_timeout_s: float = Field(default=MAX_COMMAND_TIMEOUT_S, gt=0, le=MAX_COMMAND_TIMEOUT_S)
    """The most a command may ask for."""
    data_bytes: int = Field(default=GIB, ge=16 * MIB)
    """RLIMIT_DATA of each process. Address space is not limited: V8, the JVM and Go reserve far more of it
    than they use."""
    memory_bytes: int = Field(default=GIB, ge=16 * MIB)
    """Proportional set size of all processes of the call together; the call is killed above it."""
    max_processes: int = Field(default=64, ge=2)
    """RLIMIT_NPROC, counted in the user namespace of the call."""
    file_size_bytes: int = Field(default=64 * MIB, ge=1)
    """RLIMIT_FSIZE: the largest file a process may write."""
    cpu_s: int = Field(default=60, ge=1)
    """RLIMIT_CPU of each process; a longer time-out raises it to the same value."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors that all processes of the call together may keep busy, where a cgroup v2 was delegated to
    the runner; None for all there are."""
    max_open_files: int = Field(default=256, ge=16)
    max_unlinked_bytes: int = Field(default=256 * MIB, ge=1)
    """Blocks of files that processes of the call hold open after their deletion; the call is killed above it,
    as a scan of the workspace does not see them."""
    tmp_bytes: int = Field(default=64 * MIB, ge=1)
    """Size of the call's own `/tmp`."""
    home_bytes: int = Field(default=MIB, ge=1)
    """Size of the call's own `/home`."""
    shm_bytes: int = Field(default=16 * MIB, ge=1)
    """Size of the call's own `/dev/shm`."""
    max_command_bytes: int = Field(default=96 * KIB, ge=1, le=128 * KIB - 1)
    """Length of a command in UTF-8. The kernel refuses one argument of 128 KiB (MAX_ARG_STRLEN)."""
    max_output_bytes: int = Field(default=256 * MIB, ge=1)
    """Standard output and error together; the call is killed above it."""
    max_stored_output_bytes: int = Field(default=12 * MIB, ge=0, le=16 * MIB)
    """How much of an output too long for the model is kept whole; the rest is counted only."""
    max_concurrent_calls: int = Field(default_factory=_default_concurrency, ge=1)
    """Commands at a time; more wait. Above twice the cores only the latency grows."""
    watchdog_interval_s: float = Field(default=0.25, gt=0)
    """Between two looks at the memory of a running call."""
    kill_wait_s: float = Field(default=2.0, gt=0)
    """How long the end of a killed process tree is awaited before the sweep is left to finish it."""


class WorkspaceLimits(_Limits):
    """What one workspace may hold. Above it writes are refused, and a command that grows it is killed."""

    max_bytes: int = Field(default=GIB, ge=1)
    """Disk blocks in bytes; a hole in a sparse file costs nothing, a hard link counts once."""
    max_entries: int = Field(default=100_000, ge=1)
    """Files, directories and links."""
    max_depth: int = Field(default=128, ge=1)
    """Levels of directories; a deeper tree counts as too large."""
    scan_share: float = Field(default=0.1, gt=0, le=1)
    """The share of the time that may go into measuring one workspace."""


class FetchLimits(_Limits):
    """What one fetch may use."""

    timeout_s: float = Field(default=FETCH_TIMEOUT_S, gt=0, le=FETCH_TIMEOUT_S)
    """From the first look-up to the last byte, redirects included."""
    max_redirects: int = Field(default=5, ge=0)
    max_received_bytes: int = Field(default=2 * MIB, ge=1)
    """Body as received; the rest is not read."""
    max_body_bytes: int = Field(default=2 * MIB, ge=1)
    """Body after decompression; the rest is not inflated."""


class ProxyLimits(_Limits):
    """What one command may use of the proxy that its assistant's policy grants it."""

    max_bytes: int = Field(default=256 * MIB, ge=1)
    """Both directions of all connections together; above it every connection is closed."""
    max_connections: int = Field(default=32, ge=1)
    """Connections at a time; more wait."""
    max_total_connections: int = Field(default=2_000, ge=1)
    """Connections of the whole command; above it they are refused."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """For the head of a request."""
    idle_timeout_s: float = Field(default=120.0, gt=0)
    """Without a byte from the server; then the connection is closed."""


class MarkdownLimits(_Limits):
    """What turning one page into Markdown may use; beyond it the page comes back as it is, with a note."""

    timeout_s: float = Field(default=10.0, gt=0)
    """Wall clock, the wait for a slot included."""
    cpu_s: int = Field(default=8, ge=1)
    """RLIMIT_CPU of the process."""
    memory_bytes: int = Field(default=256 * MIB, ge=64 * MIB)
    """RLIMIT_DATA of the process. A page of 2 MiB takes about 60 MiB."""
    max_markdown_bytes: int = Field(default=8 * MIB, ge=1)
    """Length of the Markdown in UTF-8."""
    max_concurrent: int = Field(default=2, ge=1)
    """Pages at a time; more wait."""


class RunnerLimits(_Limits):
    """All limits of a runner."""

    max_output_chars: int = Field(default=MAX_OUTPUT_CHARS, ge=200, le=MAX_OUTPUT_CHARS)
    """Characters of output that one result may show a model: standard output and error together, one page of
    a file, or the body of a response."""
    sandbox: SandboxLimits = SandboxLimits()
    workspace: WorkspaceLimits = WorkspaceLimits()
    fetch: FetchLimits = FetchLimits()
    markdown: MarkdownLimits = MarkdownLimits()
    proxy: ProxyLimits = ProxyLimits()
