"""Named places in the code where a test may let a process die, hesitate or fail.

    BANKSMAN_TESTING=1 BANKSMAN_FAILPOINT=runner.after_claim:kill
    BANKSMAN_TESTING=1 BANKSMAN_FAILPOINT=agent.before_ack:sleep=2,gateway.before_answer:error

A process arms them once, at its start; without the first variable it refuses to start with the second.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, cast, get_args

from banksman.contracts.errors import BadInput, Unavailable

VARIABLE = "BANKSMAN_FAILPOINT"
TESTING_VARIABLE = "BANKSMAN_TESTING"

Failpoint = Literal[
    "agent.reply_received",
    "agent.before_question",
    "agent.before_ack",
    "gateway.before_answer",
    "runner.workspace_made",
    "runner.before_claim",
    "runner.after_claim",
    "runner.begin",
    "runner.running",
    "runner.end",
    "runner.result_stored",
]
"""
agent.reply_received   the model has answered, and nothing of it is stored
agent.before_question  the log says that the run is parked, and its question is not stored
agent.before_ack       the log says that a run is parked or over, and its message is not acknowledged
gateway.before_answer  a request for a run is stored, and its client does not know
runner.workspace_made  a workspace begins with its first files, and the runner has not noted that
runner.before_claim    a call was accepted, and its start is not stored
runner.after_claim     its start is stored, and nothing else was done
runner.begin           its workspace is open, and its tool is about to run
runner.running         the tool has begun to write output
runner.end             the tool has ended, and its result is not stored
runner.result_stored   its result is stored, and the runner goes on
"""

_Act = Callable[[Failpoint], Awaitable[None]]
_armed: dict[str, _Act] = {}


async def reach(name: Failpoint) -> None:
    """Do what was armed for this place; nothing in a process that was not armed.

    Raises:
        Unavailable: that is what was armed.
    """
    act = _armed.get(name)
    if act is not None:
        await act(name)


def arm(environment: Mapping[str, str]) -> None:
    """Take what the environment asks for.

    Raises:
        BadInput: it cannot be read, or this is no test.
    """
    asked = environment.get(VARIABLE)
    _armed.clear()
    if not asked:
        return
    if environment.get(TESTING_VARIABLE) != "1":
        raise BadInput(VARIABLE, asked, f"nothing, unless {TESTING_VARIABLE}=1 says that this is a test")
    for entry in asked.split(","):
        name, _, action = entry.strip().partition(":")
        if name not in get_args(Failpoint):
            raise BadInput(VARIABLE, name, f"one of {', '.join(get_args(Failpoint))}")
        _armed[cast(Failpoint, name)] = _act(action)


def _act(action: str) -> _Act:
    kind, _, value = action.partition("=")
    match kind:
        case "kill" if not value:
            return _kill
        case "error" if not value:
            return _fail
        case "sleep" if value.replace(".", "", 1).isdigit():
            return lambda _name: asyncio.sleep(float(value))
        case _:
            raise BadInput(VARIABLE, action, "kill, error, or sleep=SECONDS")


async def _kill(_name: Failpoint) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _fail(name: Failpoint) -> None:
    raise Unavailable(f"failpoint {name}")
