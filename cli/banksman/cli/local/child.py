"""Launches a program that the kernel kills when its parent process dies.

`python -I -S child.py PARENT_PID COMMAND…` runs by its path and without site packages, so that it costs a few
milliseconds. PR_SET_PDEATHSIG survives exec, and it is the only way to survive a `kill -9` of the parent
without leaving orphans (https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def launched(command: tuple[str, ...], parent: int) -> tuple[str, ...]:
    """Return the command line that runs `command` and binds its life to the process `parent`."""
    return (sys.executable, "-I", "-S", __file__, str(parent), *command)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with(parent)
    os.execvp(command[0], command)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent`, which started it, dies; end at once if it has died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before prctl sends no signal.
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main()
