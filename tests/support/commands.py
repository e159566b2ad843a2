"""Commands of `banksman` that tests run to their end, forked from a process that has imported them.

A start with `python -m banksman.cli` takes about half a second of CPU time, nearly all of it for imports.
Each command has a process, an environment and standard streams of its own, as if a shell had started it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from typing import IO

from setproctitle import getproctitle, setproctitle

from banksman.cli.local.child import die_with, launched
from banksman.cli.main import main as run_banksman
from tests.support.paths import ROOT
from tests.support.timeouts import WAIT_TIMEOUT_S

_MESSAGE_BYTES = 4096
_PARTS = ("banksman.cli.client", "banksman.cli.operator", "banksman.cli.local")


_Streams = tuple[int, int, int]
"""Descriptors of a command's standard input, output and error output."""


def run_command(
    *arguments: str, environment: Mapping[str, str], stdin: str = "", timeout_s: float = 4 * WAIT_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run `banksman` with these arguments, without a terminal.

    Call it in the main thread: the kernel ends the process that forks with the thread that started it.

    Raises:
        subprocess.TimeoutExpired: It took longer than `timeout_s` seconds, and has been killed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as pipe:
            pipe.write(stdin)  # must fit the pipe's buffer, because the reader starts later
        with os.fdopen(reading) as standard_input:
            streams = (standard_input.fileno(), output.fileno(), errors.fileno())
            code = _forks().run(arguments, environment, streams, timeout_s)
        return subprocess.CompletedProcess(arguments, code, _read(output), _read(errors))


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _CommandForks:
    """The process that forks commands. The kernel ends it and its commands with the tests' process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, "-m", "tests.support.commands", str(theirs.fileno()))
        with theirs:
            self._process = subprocess.Popen(
                launched(command, os.getpid()),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )

    def close(self) -> None:
        """End it."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def run(
        self,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        streams: tuple[int, ...],
        timeout_s: float,
    ) -> int:
        """Run a command; return its exit code, or the negative number of the signal that killed it."""
        request = {"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, os.fdopen(os.memfd_create("request", os.MFD_CLOEXEC), "w+b") as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            with theirs:
                socket.send_fds(self._control, [b"run"], [file.fileno(), theirs.fileno(), *streams])
            pid = int(ours.recv(_MESSAGE_BYTES))
            ours.settimeout(timeout_s)
            try:
                return int(ours.recv(_MESSAGE_BYTES))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout_s) from None


@cache
def _forks() -> _CommandForks:
    started = _CommandForks()
    atexit.register(started.close)
    return started


def main() -> int:
    """Fork commands until the tests close the socket. In a forked process, run its command."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # The library finds the command line in memory beside the initial environment; later that is replaced.
    setproctitle(getproctitle())
    for part in _PARTS:
        package = importlib.import_module(part)
        for module in pkgutil.iter_modules(package.__path__, f"{part}."):
            importlib.import_module(module.name)
    gc.freeze()
    # The processes that wait for commands report their ends; this one does not wait for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        body, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 5)
        if not body:
            return 0
        template = os.getpid()
        if os.fork() == 0:
            control.close()
            die_with(template)
            return _run(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run(request: int, report: int, *streams: int) -> int:
    """Fork the command and report its process id and its exit code; in the forked process, run it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reporter = os.getpid()
    if pid := os.fork():
        os.write(report, str(pid).encode())
        os.write(report, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    die_with(reporter)
    os.close(report)
    with os.fdopen(request, "rb") as file:
        wanted = json.load(file)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["directory"])
    setproctitle(f"{sys.executable} -m banksman.cli {' '.join(wanted['arguments'])}")
    sys.argv = ["banksman", *wanted["arguments"]]
    return run_banksman()


if __name__ == "__main__":
    sys.exit(main())
