"""A process that has imported the services, and forks one of them for each request.

The services of one machine import the same libraries. Importing them once halves the CPU time of a start, and
the processes share the memory that none of them changes. `python -m banksman.cli.template FD SERVICE…`
serves the requests of `ServiceTemplate` on the socket FD. Its own environment contains no settings and no
secrets: each request contains the environment of its service.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from types import FrameType

from setproctitle import getproctitle, setproctitle

from banksman.cli.local.child import die_with
from banksman.cli.local.forks import ForkRequest
from banksman.cli.main import main as run_command
from banksman.cli.services import SERVICES, load_service
from banksman.contracts.errors import Unavailable

_MESSAGE_BYTES = 4096
IMPORTED_LATER = (
    "anyio._backends._asyncio",
    "banksman.cli.settings",
    "encodings.idna",
    "uvicorn.lifespan.off",
)
"""Modules that services and their libraries import during their start; imported here, they are shared."""


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    # setproctitle finds the command line in memory beside the original environment, which a fork replaces.
    setproctitle(getproctitle())
    for name in sys.argv[2:]:
        # The forked service reports what is missing.
        with contextlib.suppress(Unavailable):
            load_service(name)
    _import_the_rest()
    service = _forked_service(control)
    if service is None:
        return 0
    _forget_metrics_of_others(service)
    sys.argv = ["banksman", service]
    return run_command()


def _forget_metrics_of_others(service: str) -> None:
    """Export only what this service measures: a gauge of another one would always be zero."""
    from prometheus_client import REGISTRY
    from prometheus_client.metrics import MetricWrapperBase

    others = tuple(f"{package}." for name, package in SERVICES.items() if name != service)
    foreign = [module for name, module in sys.modules.items() if name.startswith(others)]
    defined = {id(value): value for module in foreign for value in vars(module).values()}
    for value in defined.values():
        if isinstance(value, MetricWrapperBase):
            REGISTRY.unregister(value)


def _import_the_rest() -> None:
    for name in IMPORTED_LATER:
        # The library is not installed, or its version has other modules.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    # These objects are never garbage. A collection in a service would write to their shared memory.
    gc.freeze()


def _forked_service(control: socket.socket) -> str | None:
    """Serve requests; return None at the end, and in a forked process the name of its service."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Without a handler, the signal would not wake `select`.
    signal.signal(signal.SIGCHLD, _on_child)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, _MESSAGE_BYTES)
            _report_ended(control)
        if control not in ready:
            continue
        body, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
        if not body:
            return None
        request, output = descriptors
        template = os.getpid()
        pid = os.fork()
        if pid:
            os.close(request)
            os.close(output)
            _send(control, {"forked": pid})
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (woken, wake, control.detach()):
            os.close(descriptor)
        return _become(request, output, template)


def _on_child(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor is only written for signals that have a handler."""


def _become(request: int, output: int, template: int) -> str:
    # Only the supervisor must receive a Ctrl-C of the terminal: it stops the processes in order.
    os.setpgid(0, 0)
    die_with(template)
    with os.fdopen(request, "rb") as file:
        wanted = ForkRequest(**json.load(file))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(wanted.environment)
    time.tzset()
    setproctitle(wanted.title)
    return wanted.service


def _report_ended(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _send(control, {"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])})


def _send(control: socket.socket, message: Mapping[str, int]) -> None:
    # The launcher may have ended; the kernel then ends this process too.
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main())
