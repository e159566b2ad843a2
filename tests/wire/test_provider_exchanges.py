"""Whole exchanges with each vendor, compared byte by byte with what is kept in `golden/`.

A change here is a change of what vendors are sent. `BANKSMAN_RENEW_GOLDEN=1` writes the files anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import Calls, ModelReply, ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.assistants import ModelOptions
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, ToolProtocol, UserMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.model_server import ModelServer, Reply, Usage
from banksman.model_server import ToolCall as ScriptedCall
from banksman.prompting.enhance import enhance
from banksman.testing.deltas import Shown

GOLDEN = Path(__file__).parent / "golden"

TOOLS = (
    ToolDefinition(
        name="bash",
        description="Runs a command in the workspace.",
        category="workspace",
        input_schema={
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command line."}},
            "required": ["command"],
        },
        requires_approval=True,
    ),
    ToolDefinition(
        name="read_file",
        description="Reads a text file.",
        category="workspace",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    ),
)

RESULTS = {
    "bash": {"success": True, "exit_code": 0, "stdout": "notes.txt\n", "stderr": ""},
    "read_file": {"success": True, "path": "notes.txt", "content": "Buy milk.\n"},
}

AS_TEXT = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'

SCRIPTS: dict[ToolProtocol, list[Reply]] = {
    "native": [
        Reply(
            text="Let me look.",
            reasoning="Two calls at once.",
            tool_calls=(
                ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_1"),
                ScriptedCall(name="read_file", arguments={"path": "notes.txt"}, id="call_2"),
            ),
            usage=Usage(input_tokens=200, output_tokens=40),
        ),
        Reply(
            text="You have to buy milk.", usage=Usage(input_tokens=260, output_tokens=9, cached_tokens=200)
        ),
    ],
    "json_text": [
        Reply(text=AS_TEXT, usage=Usage(input_tokens=400, output_tokens=30)),
        Reply(text="There is one file.", usage=Usage(input_tokens=450, output_tokens=6)),
    ],
}


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as running:
        yield running


@pytest.mark.parametrize("protocol", ["native", "json_text"])
@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_an_exchange_with_calls_is_what_it_was(
    server: ModelServer, vendor: str, protocol: ToolProtocol
) -> None:
    """R62, R77, R79, R80, R85, R87, R92, R95, R113."""
    model = server.play("exchange", SCRIPTS[protocol])
    settings = ProviderSettings(openai_base_url=server.openai_url, anthropic_base_url=server.url)
    providers = Providers(settings)
    try:
        replies = await converse(providers, vendor, model, protocol)
    finally:
        await providers.close()

    exchange = {
        "requests": [request.body for request in server.requests("exchange")],
        "replies": [plain(reply) for reply in replies],
    }
    assert server.violations == []
    assert exchange == golden(f"{vendor}-{protocol}", exchange)


async def converse(
    providers: Providers, vendor: str, model: str, protocol_name: ToolProtocol
) -> list[ModelReply]:
    """Two iterations, as the loop would make them."""
    provider, name = providers.choose(f"{vendor}:{model}")
    protocol = protocol_for(protocol_name)
    system = enhance("You keep notes.", TOOLS, protocol_name, mermaid=False).text
    options = ModelOptions(max_tokens=1000, temperature=0.5)
    history: list[Message] = [UserMessage(message_id="m1", content="What do I have to do?")]
    replies: list[ModelReply] = []
    for _ in SCRIPTS[protocol_name]:
        request = protocol.prepare(ModelRequest(name, system, tuple(history), TOOLS, options))
        replies.append(await provider.complete(request, deltas=Shown(), deadline_s=5))
        history += said_and_done(protocol_name, vendor, replies[-1])
    return replies


def said_and_done(protocol: ToolProtocol, vendor: str, reply: ModelReply) -> list[Message]:
    reading = protocol_for(protocol).read(reply)
    if not isinstance(reading, Calls):
        return []
    calls = tuple(
        ToolCall(
            id=f"c{number}",
            name=call.name,
            arguments=call.arguments or {},
            provider_call_id=call.provider_call_id,
            terminate=call.terminate,
        )
        for number, call in enumerate(reading.calls, 1)
    )
    said = AssistantMessage(
        message_id="m2",
        content=reading.text,
        calls=calls,
        protocol=protocol,
        provider=vendor,
        provider_state=reply.provider_state,
    )
    results = [
        ToolMessage(
            name=call.name,
            result=ToolResult.model_validate({"tool_call_id": call.id, "content": RESULTS[call.name]}),
        )
        for call in calls
    ]
    return [said, *results]


def plain(reply: ModelReply) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(reply) | {"usage": reply.usage.model_dump()}))


def golden(name: str, exchange: dict[str, Any]) -> dict[str, Any]:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("BANKSMAN_RENEW_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(exchange, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))
