from __future__ import annotations

import os


def change_mode(name: str, directory: int | None, mode: int) -> None:
    """Change the mode of an entry of `directory`; None is the current directory.

    `os.chmod` follows a link that a process has put in the place of the entry: fchmodat(2) has no flags
    before Linux 6.6.

    Raises:
        OSError: the entry is a link, or its mode cannot be changed.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        # fchmod(2) refuses a descriptor of O_PATH; a link itself has no mode that can be changed.
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)
