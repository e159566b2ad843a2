"""Processes of sandboxes: trees, orphans of a killed spawner, leftovers of a killed runner, and their use.

The use is memory, and files that no directory lists. The memory is measured only if the runner has no cgroup.
The files are deleted ones that processes have open or mapped; a scan of the workspace does not see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from banksman.tool_runner.sandbox.base import WORKSPACE
from banksman.tool_runner.sandbox.bwrap.spawner_process import STARTER_NAME

_PROC = Path("/proc")


def children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and its descendants; processes that start meanwhile may be missing."""
    pending = [pid]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def orphans() -> list[int]:
    """Return the children of this process that a killed spawner left behind.

    The runner is a subreaper, so the kernel reparents them to it. Only a spawner starts starters and bwrap or
    creates pid namespaces, so no other child of this process is among them.
    """
    own_depth = _namespace_depth(os.getpid())
    return [pid for pid in children(os.getpid()) if _is_parent(pid) or _namespace_depth(pid) > own_depth]


def _is_parent(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip() in (STARTER_NAME, "bwrap")
    except OSError:
        return False


def _namespace_depth(pid: int) -> int:
    """Return the number of pid namespaces, from this one down, that contain a process; 0 if it has ended."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) - 1
    return 0


async def wait_exit(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def kill_orphans() -> int:
    """Kill and reap every orphan; return their number when all have ended.

    When the first process of a pid namespace dies, the kernel kills the namespace and lets that process end
    last (pid_namespaces(7)). Once an orphan is reaped, no process below it is left.
    """
    killed = 0
    while pids := orphans():
        for pid in pids:
            with contextlib.ExitStack() as opened:
                if (pidfd := kill_process(pid, lambda _: True, opened)) is not None:
                    killed += 1
                    await wait_exit(pidfd)
                    # Another call that ended at the same time may already have reaped it.
                    with contextlib.suppress(ChildProcessError):
                        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
    return killed


def kill_process(pid: int, is_meant: Callable[[int], bool], opened: contextlib.ExitStack) -> int | None:
    """Kill a process and return its pidfd, which `opened` closes; None if it has ended or is not meant."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    opened.callback(os.close, pidfd)
    # The id may have been reused before the pidfd was opened. From here, the pidfd names one process.
    if not is_meant(pid):
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd


def end_leftovers(root: Path, *, wait_s: float = 5.0) -> int:
    """Kill every sandbox with a workspace below `root`, of any user and any parent; return their number.

    The caller has claimed `root` and does not use it yet. Returns when the sandboxes have ended, or after
    `wait_s` seconds.
    """
    place = _location(root)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as opened:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        sandboxes = [pid for pid in pids if _is_sandbox_of(pid, place)]
        found = [kill_process(pid, lambda pid: _is_sandbox_of(pid, place), opened) for pid in sandboxes]
        killed = [pidfd for pidfd in found if pidfd is not None]
        poll = select.poll()
        for pidfd in killed:
            poll.register(pidfd, select.POLLIN)
        running = len(killed)
        while running and (left_s := deadline - time.monotonic()) > 0:
            for pidfd, _ in poll.poll(left_s * 1000):
                poll.unregister(pidfd)
                running -= 1
        return len(killed)


@dataclass(frozen=True, slots=True)
class _Location:
    """A directory, independent of mount namespaces."""

    device: str
    """`major:minor`."""
    path: PurePosixPath
    """Path within the file system of the device."""


def _location(directory: Path) -> _Location:
    resolved = PurePosixPath(directory.resolve())
    holding = [mount for mount in _mounts("self") if resolved.is_relative_to(mount.point)]
    # A later mount at the same point hides the earlier one.
    mount = max(reversed(holding), key=lambda mount: len(mount.point.parts))
    return _Location(mount.source.device, mount.source.path / resolved.relative_to(mount.point))


@dataclass(frozen=True, slots=True)
class _Mount:
    source: _Location
    point: PurePosixPath


def _mounts(pid: int | str) -> Iterator[_Mount]:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "mountinfo").read_bytes().splitlines():
            _, _, device, path, point, *_ = os.fsdecode(line).split(" ")
            yield _Mount(_Location(device, _unescaped(path)), _unescaped(point))


def _unescaped(path: str) -> PurePosixPath:
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path))


def _is_sandbox_of(pid: int, place: _Location) -> bool:
    """Return whether a process is bwrap, in a mount namespace with a workspace below `place`.

    A command cannot mount, so it cannot imitate this.
    """
    with contextlib.suppress(OSError):
        if (_PROC / str(pid) / "comm").read_text() == "bwrap\n":
            return any(
                mount.point == PurePosixPath(WORKSPACE)
                and mount.source.device == place.device
                and mount.source.path.is_relative_to(place.path)
                for mount in _mounts(pid)
            )
    return False


_BLOCK_BYTES = 512
_SHARED_ANONYMOUS = b"/dev/zero (deleted)"
"""The path of mappings with MAP_SHARED and MAP_ANONYMOUS.

Their pages belong to a file without a name, and remain when no process has them in its page tables. They
count as memory, not as files.
"""
_PARKED_EXAMINATIONS = 4
"""Consecutive examinations that find descriptors in sockets, after which these count as parked there."""


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; unreadable values count as 0.

    It is the sum of the proportional set sizes, the page tables, and the pages of shared anonymous mappings.
    """
    shared = _SharedMemory()
    own = 0
    for each in descendants(pid):
        own += _own_bytes(each) + _sizes(each, "status").get("VmPTE", 0)
        shared.add(each)
    return own + shared.bytes()


def _own_bytes(pid: int) -> int:
    sizes = _sizes(pid, "smaps_rollup")
    return sizes.get("Pss", 0) - sizes.get("Pss_Shmem", 0)


def _sizes(pid: int, name: str) -> dict[str, int]:
    """Return the sizes in a file of `/proc/{pid}` with lines such as `Pss: 12 kB`, in bytes."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / name).read_text("utf-8", "replace").splitlines():
            if line.endswith(" kB"):
                label, _, value = line.partition(":")
                sizes[label] = int(value.split()[0]) * 1024
    return sizes


@dataclass
class _SharedMemory:
    """The files of shared anonymous mappings, each counted once."""

    _allocated: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Bytes by device and inode, where the kernel reports them (CAP_CHECKPOINT_RESTORE)."""
    _mapped: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Otherwise the highest sum of the mappings in one process."""

    def add(self, pid: int) -> None:
        mapped = Counter[tuple[int, int]]()
        for mapping in _shared_mappings(pid):
            if mapping.file not in self._allocated:
                with contextlib.suppress(OSError):
                    status = os.stat(_PROC / str(pid) / "map_files" / mapping.addresses)
                    self._allocated[mapping.file] = status.st_blocks * _BLOCK_BYTES
            mapped[mapping.file] += mapping.size
        for file, size in mapped.items():
            self._mapped[file] = max(size, self._mapped.get(file, 0))

    def bytes(self) -> int:
        return sum((self._mapped | self._allocated).values())


def _shared_mappings(pid: int) -> Iterator[_Mapping]:
    with contextlib.suppress(OSError):
        maps = (_PROC / str(pid) / "maps").read_bytes()
        # Most processes have none, and a hostile one may have 65,000 mappings.
        if _SHARED_ANONYMOUS not in maps:
            return
        for line in maps.splitlines():
            if line.endswith(b" " + _SHARED_ANONYMOUS):
                yield _mapping(line)


@dataclass(frozen=True, slots=True)
class _Mapping:
    file: tuple[int, int]
    """Device and inode."""
    addresses: str
    """The name in `map_files`, which has no leading zeros, unlike the addresses in `maps` (proc(5))."""
    size: int
    path: bytes


def _mapping(line: bytes) -> _Mapping:
    addresses, _, _, device, inode, path = line.split(None, 5)
    begin, _, end = addresses.partition(b"-")
    major, _, minor = device.partition(b":")
    first, last = int(begin, 16), int(end, 16)
    file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
    return _Mapping(file, f"{first:x}-{last:x}", last - first, path)


@dataclass
class HiddenFilesWatch:
    max_bytes: int
    max_file_bytes: int
    """Counted for a deleted, mapped file that this process may not examine: only a privileged process may
    examine one (CAP_CHECKPOINT_RESTORE, proc(5))."""
    _examinations_in_sockets: int = 0

    def exceeded(self, pid: int) -> bool:
        """Examine a process and its descendants; return whether they hold more than `max_bytes`.

        Unreadable processes count as 0. Files whose descriptors wait in a unix socket are in no process
        (SCM_RIGHTS, unix(7)), so they cannot be measured. A program that passes descriptors on receives them
        soon. If some are in sockets at each of several examinations, the call may hold all that it has
        written.
        """
        held: dict[tuple[int, int], int] = {}
        in_sockets, written_bytes = False, 0
        for each in descendants(pid):
            process = _PROC / str(each)
            in_sockets |= _note_open(process, held)
            _note_mapped(process, held, self.max_file_bytes)
            written_bytes += _written_bytes(process)
        self._examinations_in_sockets = self._examinations_in_sockets + 1 if in_sockets else 0
        parked = self._examinations_in_sockets >= _PARKED_EXAMINATIONS
        return sum(held.values()) > self.max_bytes or (parked and written_bytes > self.max_bytes)


def _note_open(process: Path, held: dict[tuple[int, int], int]) -> bool:
    """Add deleted files that are open; return whether descriptors wait in a socket of the process."""
    waiting = False
    with contextlib.suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                if stat.S_ISSOCK(status.st_mode):
                    waiting |= _descriptors_wait(process / "fdinfo" / entry.name)
                else:
                    _note(status, held)
    return waiting


def _descriptors_wait(fdinfo: Path) -> bool:
    """Return whether the receive queue of a socket contains descriptors (Linux 5.6 and newer)."""
    for line in fdinfo.read_text().splitlines():
        if line.startswith("scm_fds:"):
            return int(line.split()[1]) > 0
    return False


def _note_mapped(process: Path, held: dict[tuple[int, int], int], max_file_bytes: int) -> None:
    """Add deleted files that are mapped. The length of a mapping says nothing about the size of its file."""
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_bytes().splitlines():
            if not line.endswith(b" (deleted)"):
                continue
            mapping = _mapping(line)
            if mapping.path == _SHARED_ANONYMOUS or mapping.file in held:
                continue
            try:
                _note((process / "map_files" / mapping.addresses).stat(), held)
            except PermissionError:
                held[mapping.file] = max_file_bytes


def _note(status: os.stat_result, held: dict[tuple[int, int], int]) -> None:
    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
        held[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES


def _written_bytes(process: Path) -> int:
    """Return the bytes that a process and its ended children have written to files on disks (proc(5))."""
    with contextlib.suppress(OSError, ValueError):
        for line in (process / "io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    return 0
