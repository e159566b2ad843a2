"""Established TCP connections of processes, from the tables of the kernel."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED = "01"


def sockets_connected_to(port: int) -> set[str]:
    """Return the inodes of the sockets of this machine that are connected to a remote port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == _ESTABLISHED and int(row[2].rpartition(":")[2], 16) == port}


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of the sockets of a process; none if it has ended."""
    try:
        return {_inode(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()


def _inode(link: Path) -> str:
    try:
        return str(link.readlink()).removeprefix("socket:[").removesuffix("]")
    except OSError:
        return ""
