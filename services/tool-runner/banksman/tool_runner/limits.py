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
    model_config = ConfigDict(frozen=True, extra="forbid")


def _default_concurrency() -> int:
    return max(2, 2 * (os.cpu_count() or 1))


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
    max_concurrent_calls: int = Field(default_factory=_default_concurrency, ge=1)
    """Concurrent commands; further commands wait. Above twice the number of cores, only the latency grows."""
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
