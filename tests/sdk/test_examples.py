"""The examples, each run unchanged in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from banksman.bus.connection import Bus
from banksman.cli.machine import free_port
from banksman.contracts.events import MessageCompleted, RunFinished, ToolCallRequested
from banksman.contracts.frames import CLIENT_FRAME, Ack, ApprovalDecision, ClientFrame, ConversationCreate
from banksman.contracts.ids import run_id_for
from banksman.contracts.tools import ToolCall
from tests.sdk.fake_gateway import FakeGateway, Writer, ended, started
from tests.support.model_server import ModelServer
from tests.support.nats import NatsServer
from tests.support.paths import ROOT
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

EXAMPLES = ROOT / "examples"


async def begun(example: str, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / example),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**own, **environment},
    )


async def run(example: str, *arguments: str, stdin: str = "", **environment: str) -> tuple[int | None, str]:
    """Run an example; return its exit code and output."""
    process = await begun(example, *arguments, **environment)
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            output, _ = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output.decode()


async def test_openai_passthrough_prints_the_streamed_reply() -> None:
    async with ModelServer.running() as server:
        code, output = await run("openai_passthrough.py", "hello", OPENAI_BASE_URL=server.openai_url)

    assert code == 0, output
    assert "demo model" in output


SERVERS = {"release_workflow.py", "weather_tool.py"}


@pytest.mark.parametrize("example", sorted({file.name for file in EXAMPLES.glob("*.py")} - SERVERS))
async def test_an_example_that_finds_no_system_prints_one_sentence(example: str, tmp_path: Path) -> None:
    """Also with another port than the default, or in another directory."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    variables = {"BANKSMAN_GATEWAY_URL": nowhere, "OPENAI_BASE_URL": f"{nowhere}/v1"}

    code, output = await run(example, BANKSMAN_DATA_DIR=str(tmp_path), **variables)

    *_, sentence = output.splitlines()
    assert (code, "Traceback" in output) == (1, False), output
    assert re.search("set BANKSMAN_GATEWAY_URL|set OPENAI_BASE_URL|start `banksman up`", sentence)


@pytest.mark.parametrize("example", sorted(SERVERS))
async def test_a_server_that_finds_no_system_waits_until_it_is_stopped(example: str, tmp_path: Path) -> None:
    process = await begun(example, BANKSMAN_DATA_DIR=str(tmp_path))
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        output = (await process.stdout.readuntil(b"start `banksman up`")).decode()
        process.terminate()
        output += (await process.stdout.read()).decode()
        code = await process.wait()
    assert (code, "Traceback" in output) == (0, False), output


@pytest.mark.parametrize(
    ("stdin", "decided"), [pytest.param("y\n", "approve", id="y"), pytest.param("", "reject", id="no input")]
)
async def test_chat_over_websocket_requests_approval_and_prints_the_outcome(stdin: str, decided: str) -> None:
    received: list[ClientFrame] = []

    async def gateway(socket: ServerConnection) -> None:
        async for message in socket:
            frame = CLIENT_FRAME.validate_json(message)
            received.append(frame)
            for reply in replies(frame):
                await socket.send(json.dumps(reply))

    async with serve(gateway, "127.0.0.1", 0, subprotocols=[Subprotocol("banksman.v1")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        for _ in range(2):
            code, output = await run(
                "chat_over_websocket.py", "run", "`ls`", stdin=stdin, BANKSMAN_GATEWAY_URL=url
            )
            assert code == 0, output
            assert '… bash {"command": "ls"}' in output
            assert output.endswith("done\n")

    sent = ["hello", "conversation.create", "chat.send", "approval.reply"]
    assert [frame.type for frame in received] == sent * 2
    # A request with the id of an earlier one would count as its repeat.
    assert len({frame.id for frame in received}) == len(received)
    decision = received[-1]
    assert isinstance(decision, ApprovalDecision)
    assert (decision.all, decision.digests) == (decided, ("d1",))


def replies(frame: ClientFrame) -> list[dict[str, object]]:
    """Return a gateway's replies to each request, including events."""
    outcome = ended("done").model_dump(mode="json")
    match frame.type:
        case "hello":
            return [{"type": "welcome", "reply_to": frame.id}]
        case "conversation.create":
            return [{"type": "ack", "reply_to": frame.id, "conversation_id": "c1"}]
        case "chat.send":
            call = {"name": "bash", "arguments": {"command": "ls"}}
            return [
                {"type": "ack", "reply_to": frame.id, "run_id": "c1-r1"},
                {"type": "tool_call.requested", "data": call},
                {
                    "type": "approval.requested",
                    "data": {"approval_id": "a1", "items": [call | {"digest": "d1"}]},
                },
            ]
        case "approval.reply":
            # The outcome may be faster than the acknowledgement.
            return [{"type": "run.finished", "data": outcome}, {"type": "ack", "reply_to": frame.id}]
        case _:
            raise AssertionError(frame)


async def test_chat_over_nats_follows_its_run_to_the_end(
    nats_server: NatsServer, bus: Bus, tenant: str, conversation: str
) -> None:
    run_id = run_id_for(conversation)
    frames: asyncio.Queue[ClientFrame] = asyncio.Queue()

    def reply(frame: ClientFrame) -> Ack:
        frames.put_nowait(frame)
        made = isinstance(frame, ConversationCreate)
        return Ack(
            reply_to=str(frame.id),
            conversation_id=conversation if made else None,
            run_id=None if made else run_id,
        )

    async def agent() -> None:
        async with deadline("the example sent no message"):
            while (await frames.get()).type != "chat.send":
                continue
        log = Writer(bus, tenant, conversation)
        call = ToolCall(id="k1", name="bash", arguments={"command": "ls"})
        with_call = MessageCompleted(message_id="m2", role="assistant", content=None)
        await log.write(started("hello"), with_call, ToolCallRequested(call=call), run_id=run_id)
        finished: RunFinished = ended("done")
        await log.write(finished, run_id=run_id)

    async with FakeGateway(bus, tenant, reply).open(), asyncio.TaskGroup() as tasks:
        tasks.create_task(agent())
        code, output = await run("chat_over_nats.py", tenant, "hello", NATS_URL=nats_server.url)

    assert (code, output) == (0, "… bash {'command': 'ls'}\ndone\n")
