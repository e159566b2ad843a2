"""The process that creates the streams, and hands the planned system to the supervisor.

Settings and NATS need twice the memory of the supervisor, which would use them for a second. `banksman up`
imports them, forks this process, and becomes the supervisor, which imports neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
import traceback
from typing import IO, TYPE_CHECKING, NoReturn, cast

from banksman.cli.local.child import die_with
from banksman.cli.local.child_process import CannotStart
from banksman.cli.local.system import System
from banksman.cli.readiness import until_ready
from banksman.contracts.errors import BanksmanError, ErrorCode

if TYPE_CHECKING:
    from banksman.cli.local.plan import Plan

_NO_RESULT = "the process that creates the streams ended without a result"


class Provisioner:
    """The process, and the pipe to which it writes the system and then its result."""

    def __init__(self, pid: int, pipe: IO[bytes]) -> None:
        self.pid = pid
        self.pipe = pipe

    @classmethod
    def fork(cls, plan: Plan, *, as_json: bool) -> Provisioner:
        """Start the process. With `as_json`, the supervisor prints JSON.

        Raises:
            Unavailable: nats-server is not installed.
        """
        system, parent = plan.system(as_json=as_json), os.getpid()
        readable, writable = os.pipe()
        if pid := os.fork():
            os.close(writable)
            return cls(pid, os.fdopen(readable, "rb"))
        os.close(readable)
        _provision(plan, system, parent, writable)

    def inherited(self) -> tuple[str, str]:
        """Let the pipe survive exec; return the pid and the descriptor as arguments for the supervisor."""
        os.set_inheritable(self.pipe.fileno(), True)
        return str(self.pid), str(self.pipe.fileno())

    def system(self) -> System:
        """Return the planned system.

        Raises:
            CannotStart: the process was killed before it wrote the system.
        """
        try:
            return cast(System, pickle.load(self.pipe))
        except (EOFError, pickle.UnpicklingError) as error:
            raise CannotStart(_NO_RESULT, ErrorCode.INTERNAL) from error

    async def finished(self) -> None:
        """Wait until all streams exist.

        Raises:
            CannotStart: the server refused a stream, or the process was killed.
        """
        result = await asyncio.to_thread(self.pipe.read)
        if not result:
            raise CannotStart(_NO_RESULT, ErrorCode.INTERNAL)
        if problem := json.loads(result):
            raise CannotStart(*problem)

    def end(self) -> None:
        """Kill the process, if it has not ended by itself, and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _provision(plan: Plan, system: System, parent: int, descriptor: int) -> NoReturn:
    """Write the system, create the streams, write the result, and end."""
    # Only the supervisor must receive a Ctrl-C of the terminal: it stops the processes in order.
    os.setpgid(0, 0)
    try:
        die_with(parent)
        with os.fdopen(descriptor, "wb") as pipe:
            pickle.dump(system, pipe)
            pipe.flush()
            pipe.write(json.dumps(asyncio.run(_problem(plan, system))).encode())
    except Exception:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        # Exit handlers and unwritten output belong to the original process.
        os._exit(0)


async def _problem(plan: Plan, system: System) -> tuple[str, str] | None:
    """Create the streams when the server is ready. Return the message and the code of an error."""
    await until_ready(system.server.ready_url, lambda _: None)
    try:
        await plan.nats.provision()
    except BanksmanError as error:
        return str(error), error.code
    except OSError as error:
        return str(error), "os_error"
    return None
