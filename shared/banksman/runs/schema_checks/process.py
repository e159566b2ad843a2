"""The program that applies schemas of tool servers, with limited memory and processor time per request.

A schema may be cheap to parse and still need hours for a value. Unlike a thread, a process can be killed at
any time, whatever the library does.

Each line of the input is a `CheckRequest`, each line of the output a `CheckReply`. The program ends when its
input does.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
from typing import Any, NotRequired, TypedDict

from banksman.runs.schema_checks.rules import Path, UnusableSchema, schema_fault, value_fault

_PR_SET_PDEATHSIG = 1

MAX_PATH_CHARS = 1_000
"""Maximum characters of all parts of a path together. A model chooses the names in its arguments, and asyncio
reads a line of at most 64 KiB."""


class CheckRequest(TypedDict):
    schema: str
    """The schema as JSON."""
    value: NotRequired[Any]
    """The value that must fit; omitted to check the schema itself."""


class CheckReply(TypedDict, total=False):
    """The result of one check; empty if there is no fault."""

    path: list[str | int]
    """The path to the fault. It ends with the part that exceeds its maximum, cut."""
    expected: str
    unusable: str
    """Why the schema cannot be applied."""


def main(cpu_s: float, memory_bytes: int) -> None:
    """Serve requests until the input ends. A request that takes more than `cpu_s` ends the process."""
    confine(memory_bytes)
    for line in sys.stdin.buffer:
        # SIGPROF ends the process even inside a library call.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = json.dumps(reply_to(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{reply}\n")
        sys.stdout.flush()


def confine(memory_bytes: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for limit, most in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def reply_to(request: CheckRequest) -> CheckReply:
    try:
        if "value" in request:
            fault = value_fault(request["schema"], request["value"])
        else:
            fault = schema_fault(json.loads(request["schema"]))
    except UnusableSchema as error:
        return {"unusable": str(error)}
    return {} if fault is None else {"path": _shortened(fault.path), "expected": fault.expected}


def _shortened(path: Path) -> list[str | int]:
    kept: list[str | int] = []
    room = MAX_PATH_CHARS
    for part in path:
        if len(str(part)) > room:
            return [*kept, f"{str(part)[:room]}…"]
        kept.append(part)
        room -= len(str(part))
    return kept


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
