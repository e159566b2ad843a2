"""Named places in the code where a test can kill, delay or fail a process.

    BANKSMAN_TESTING=1 BANKSMAN_FAILPOINT=runner.after_claim:kill
    BANKSMAN_TESTING=1 BANKSMAN_FAILPOINT=agent.before_ack:sleep=2,gateway.before_response:error
    BANKSMAN_TESTING=1 BANKSMAN_FAILPOINT=background.clock:fault=3

The actions are `kill` (SIGKILL), `sleep=SECONDS`, `error` (raises `Unavailable`) and `fault=TIMES` (raises an
unexpected exception that many times). A process arms its failpoints once, at its start. A process without
`BANKSMAN_TESTING=1` refuses to start with failpoints.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from banksman.contracts.errors import BadInput, Unavailable

VARIABLE = "BANKSMAN_FAILPOINT"
TESTING_VARIABLE = "BANKSMAN_TESTING"

Failpoint = Literal[
    "agent.reply_received",
    "agent.before_approval_request",
    "agent.before_ack",
    "agent.archive_stored",
    "agent.archived",
    "gateway.before_response",
    "runner.workspace_made",
    "runner.before_claim",
    "runner.after_claim",
    "runner.begin",
    "runner.running",
    "runner.end",
    "runner.result_stored",
]
"""
agent.reply_received           the model has replied; nothing of the reply is stored
agent.before_approval_request  the log says that the run is parked; its approval request is not stored
agent.before_ack               the log says that a run is parked or finished; its message is not acked
agent.archive_stored           old commits are in the archive; their log does not name it
agent.archived                 a log names its archive; the archived commits are still in the log
gateway.before_response        a request for a run is stored; its client has no response
runner.workspace_made          a workspace has its first files; the runner has not recorded it
runner.before_claim            a call is accepted; its start is not stored
runner.after_claim             the start is stored; nothing else is done
runner.begin                   the workspace is open; the tool is about to run
runner.running                 the tool has begun to write output
runner.end                     the tool has ended; its result is not stored
runner.result_stored           the result is stored; the runner continues
"""


class InjectedFault(Exception):
    """An exception that no code expects, like that of a programming error."""


_TASK = "background."

_Act = Callable[[str], Awaitable[None]]
_armed: dict[str, _Act] = {}


async def reach(name: Failpoint) -> None:
    """Perform the action that is armed for this failpoint, if any.

    Raises:
        Unavailable: The action is `error`.
        InjectedFault: The action is `fault`.
    """
    if act := _armed.get(name):
        await act(name)


async def reach_task(task: str) -> None:
    """Perform the action that is armed for a background task; called before each round of its work."""
    # Costs one comparison without failpoints, because every process runs it.
    if _armed and (act := _armed.get(f"{_TASK}{task}")):
        await act(f"{_TASK}{task}")


def arm(environment: Mapping[str, str]) -> None:
    """Arm the failpoints that the environment names, and disarm all others.

    Raises:
        BadInput: A name or an action is unknown, or the process does not run under a test.
    """
    named = environment.get(VARIABLE)
    _armed.clear()
    if not named:
        return
    if environment.get(TESTING_VARIABLE) != "1":
        raise BadInput(VARIABLE, named, f"no value, unless {TESTING_VARIABLE}=1 marks a test")
    for entry in named.split(","):
        name, _, action = entry.strip().partition(":")
        if name not in get_args(Failpoint) and not name.startswith(_TASK):
            raise BadInput(VARIABLE, name, f"{_TASK}TASK, or one of {', '.join(get_args(Failpoint))}")
        _armed[name] = _act(action)


def _act(action: str) -> _Act:
    kind, _, value = action.partition("=")
    match kind:
        case "kill" if not value:
            return _kill
        case "error" if not value:
            return _fail
        case "fault" if value.isdigit():
            return _Faults(int(value))
        case "sleep" if value.replace(".", "", 1).isdigit():
            return lambda _name: asyncio.sleep(float(value))
        case _:
            raise BadInput(VARIABLE, action, "kill, error, fault=TIMES or sleep=SECONDS")


async def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _fail(name: str) -> None:
    raise Unavailable(f"failpoint {name}")


@dataclass(slots=True)
class _Faults:
    left: int

    async def __call__(self, name: str) -> None:
        if self.left > 0:
            self.left -= 1
            raise InjectedFault(name)
