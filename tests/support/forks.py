"""Services that tests start, forked from one process that has imported them, as `banksman up` starts its own.

A start with `python -m banksman.cli` takes over a second of CPU time, nearly all of it for imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Self

from banksman.cli.local.child import launched
from banksman.cli.local.forks import ForkRequest
from tests.support.timeouts import WAIT_TIMEOUT_S

_MESSAGE_BYTES = 4096


@dataclass
class ForkedService:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    pid: int
    returncode: int | None = None
    """Its exit code, or the negative number of the signal that killed it; None while it runs."""
    _has_ended: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float = WAIT_TIMEOUT_S) -> int:
        """Wait until it ends; return its exit code.

        Raises:
            TimeoutError: It did not end within `timeout` seconds.
        """
        if not self._has_ended.wait(timeout):
            raise TimeoutError(f"process {self.pid} did not end within {timeout:g} s")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)

    def end(self, code: int) -> None:
        """Record that it has ended."""
        self.returncode = code
        self._has_ended.set()


class ServiceForks:
    """The process that forks services. As a context manager, it and all its services end with the block.

    Enter it in the main thread: the kernel ends it with the thread that started it.
    """

    def __init__(self, *services: str) -> None:
        """Name the services that it imports."""
        self._services = services
        self._running: dict[int, ForkedService] = {}
        self._forked: SimpleQueue[ForkedService] = SimpleQueue()
        self._one_request = threading.Lock()

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, "-m", "banksman.cli.template", str(theirs.fileno()), *self._services)
        with theirs:
            self._process = subprocess.Popen(
                launched(command, os.getpid()),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._control.close()

    def fork(self, service: str, environment: Mapping[str, str], output: int) -> ForkedService:
        """Return a new process of a service, which writes to the descriptor `output`; threads may call it."""
        title = f"{sys.executable} -m banksman.cli {service}"
        with self._one_request, os.fdopen(os.memfd_create("request", os.MFD_CLOEXEC), "w+b") as file:
            file.write(json.dumps(asdict(ForkRequest(service, title, environment))).encode())
            file.seek(0)
            socket.send_fds(self._control, [b"fork"], [file.fileno(), output])
            return self._forked.get(timeout=WAIT_TIMEOUT_S)

    def _read(self) -> None:
        """Read messages until the process ends, by which the kernel has killed its services."""
        with contextlib.suppress(ConnectionError):
            while body := self._control.recv(_MESSAGE_BYTES):
                message = json.loads(body)
                if pid := message.get("forked"):
                    self._running[pid] = ForkedService(pid)
                    self._forked.put(self._running[pid])
                else:
                    self._running.pop(message["ended"]).end(message["code"])
        for process in self._running.values():
            process.end(-signal.SIGKILL)
