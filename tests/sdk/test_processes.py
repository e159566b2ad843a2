"""Blocking functions of tools: in a process that is ended, or in a thread that cannot be (R55)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from banksman.contracts.calls import CallRequest
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.sdk import Toolbox, ToolFailed
from banksman.sdk.servers.calls import Stop, execute
from banksman.sdk.tools import AnyTool
from tests.support.polling import eventually


async def call(
    tool: AnyTool, *, timeout_s: float = 30.0, left_s: float = 60.0, stop: Stop | None = None
) -> ToolResult:
    """Execute a call of a tool in a run that has `left_s` seconds left."""
    now = datetime.now(UTC)
    request = CallRequest(
        tenant="t",
        conversation_id="c1",
        run_id="c1-r1",
        attempt="k1-1",
        runner_epoch=1,
        call=ToolCall(id="k1", name=tool.name, timeout_s=timeout_s),
        digest="",
        deadline=now + timedelta(seconds=left_s),
        left_s=left_s,
    )
    return await execute(tool, request, "server", stop or asyncio.get_running_loop().create_future())


def tool(function: Callable[[], Any], *, process: bool) -> AnyTool:
    return Toolbox().tool(name=new_id("t"), description="x", process=process)(function)


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def reported(file: Path) -> int:
    """Wait until a function has written its process id, and return it."""

    def written() -> int | None:
        text = file.read_text() if file.exists() else ""
        return int(text) if text.endswith("\n") else None

    return await eventually(written, 10)


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_a_function_in_a_process_is_ended_with_its_children_and_never_acts_later(
    tmp_path: Path, how: str
) -> None:
    """R55: the result names the threshold only when the process is gone."""
    file, child_file = tmp_path / "pid", tmp_path / "child"

    def block() -> None:
        child = os.fork()
        mine = file if child else child_file
        mine.write_text(f"{os.getpid()}\n")
        signal.pause()

    stop: Stop = asyncio.get_running_loop().create_future()
    calling = asyncio.create_task(
        call(tool(block, process=True), timeout_s=2 if how == "timeout" else 30, stop=stop)
    )
    pids = [await reported(file), await reported(child_file)]
    if how == "cancelled":
        stop.set_result("cancelled")
    result = await calling

    assert result.error_kind == how
    assert how == "cancelled" or "timeout of 2 s" in str(result.content["error"])
    assert ended(pids[0])
    await eventually(lambda: ended(pids[1]), 10)  # killed; its new parent reads its exit status


@pytest.mark.parametrize(
    ("timeout_s", "left_s"), [(0.25, 60.0), (60.0, 0.25)], ids=["of the tool", "of the run"]
)
async def test_a_function_is_ended_at_the_smaller_limit_which_the_error_names(
    timeout_s: float, left_s: float
) -> None:
    """R55: the time-out of the tool, or what is left of the run."""
    ends: list[str] = []

    async def wait() -> str:
        try:
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        except TimeoutError:
            ends.append("by itself")
        return "too late"

    result = await call(tool(wait, process=False), timeout_s=timeout_s, left_s=left_s)

    named = re.search(r"did not end within its timeout of ([\d.]+) s", str(result.content["error"]))
    assert (ends, result.error_kind) == (["cancelled"], "timeout")
    assert named is not None and 0 < float(named[1]) <= 0.25


async def test_no_function_is_called_after_the_end_of_the_run() -> None:
    """R55."""
    called: list[bool] = []

    result = await call(tool(lambda: called.append(True), process=False), left_s=-1)

    assert (called, result.error_kind) == ([], "timeout")
    assert "before the call could start" in str(result.content["error"])


async def test_a_function_that_ends_in_time_is_not_touched() -> None:
    """R55: the limit ends no call before its time."""

    async def step() -> str:
        await asyncio.to_thread(int)
        return "done"

    result = await call(tool(step, process=False), timeout_s=30)

    assert (result.content, result.error_kind) == ({"success": True, "result": "done"}, None)


async def test_a_function_that_continues_in_its_thread_has_an_unknown_outcome() -> None:
    """R55: the model reads that it may still act, and not that it timed out."""
    go_on, acted = threading.Event(), threading.Event()

    def block() -> None:
        go_on.wait(30)
        acted.set()

    result = await call(tool(block, process=False), timeout_s=0.1)
    go_on.set()

    assert result.error_kind == "unknown_outcome"
    assert "timeout of 0.1 s; it could not be ended and may still act" in str(result.content["error"])
    assert await asyncio.to_thread(acted.wait, 10)


async def test_an_async_function_that_ignores_its_cancellation_has_an_unknown_outcome() -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    result = await call(tool(stubborn, process=False), timeout_s=0.1)
    released.set()

    assert result.error_kind == "unknown_outcome"


def refuse() -> None:
    raise ToolFailed("No such city.", "denied")


def unwritable() -> object:
    return threading.Lock()


def die() -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("function", "content", "kind"),
    [
        (lambda: {"pid": 7, "text": "x" * 300_000}, "xxx", None),
        (refuse, "No such city.", "denied"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero", "tool_error"),
        (unwritable, "cannot be passed on", "tool_error"),
        (die, "ended without a result (exit code 3)", "tool_error"),
    ],
    ids=["value", "failed", "raised", "unwritable", "died"],
)
async def test_every_end_of_a_process_becomes_a_result(
    function: Callable[[], Any], content: str, kind: str | None
) -> None:
    """R45, R46, R47."""
    result = await call(tool(function, process=True))

    assert (result.error_kind, content in str(result.content)) == (kind, True)


async def test_a_failed_connection_is_logged_with_its_details(caplog: pytest.LogCaptureFixture) -> None:
    """R54: the model receives the failure, and the log also contains its place in the code."""

    def fetch() -> None:
        raise ConnectionRefusedError("nothing listens on port 1")

    with caplog.at_level("ERROR"):
        result = await call(tool(fetch, process=False))

    [record] = caplog.records
    assert "nothing listens on port 1" in str(result.content["error"])
    assert record.exc_info is not None and isinstance(record.exc_info[1], ConnectionRefusedError)


def test_an_async_function_gets_no_process() -> None:
    async def give() -> None: ...

    with pytest.raises(TypeError, match="needs no process"):
        tool(give, process=True)
