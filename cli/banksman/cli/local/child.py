"""Becomes another program that dies with the process that started it.

`python -I -S child.py PARENT_PID COMMAND…` runs by its path, without site packages, so that it costs
a few milliseconds. The wish to die with the parent outlives exec, and no other way survives its `kill -9`.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the parent's fate, and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the wish was heard.
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
