"""Golden exchanges of two iterations, requests and replies, per protocol."""

from __future__ import annotations

import pytest
from tests.agent.providers.conftest import Vendor
from tests.agent.providers.golden import golden, plain
from tests.agent.providers.histories import OPTIONS, TOOLS
from tests.support.deltas import Shown
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelReply, ModelRequest, RequestedCalls
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, ToolProtocol, UserMessage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.prompting.enhance import enhance

RESULTS = {
    "bash": {"success": True, "exit_code": 0, "stdout": "notes.txt\n", "stderr": ""},
    "read_file": {"success": True, "path": "notes.txt", "content": "Buy milk.\n"},
}

AS_TEXT = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'

SCRIPTS: dict[ToolProtocol, list[ScriptedReply]] = {
    "native": [
        ScriptedReply(
            text="Let me look.",
            reasoning="Two calls at once.",
            tool_calls=(
                ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_1"),
                ScriptedCall(name="read_file", arguments={"path": "notes.txt"}, id="call_2"),
            ),
            usage=ScriptedUsage(input_tokens=200, output_tokens=40),
        ),
        ScriptedReply(
            text="You have to buy milk.",
            usage=ScriptedUsage(input_tokens=260, output_tokens=9, cached_tokens=200),
        ),
    ],
    "json_text": [
        ScriptedReply(text=AS_TEXT, usage=ScriptedUsage(input_tokens=400, output_tokens=30)),
        ScriptedReply(text="There is one file.", usage=ScriptedUsage(input_tokens=450, output_tokens=6)),
    ],
}


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_exchange_with_calls_matches_the_golden_requests_and_replies(
    api: Vendor, protocol: ToolProtocol
) -> None:
    """R48, R49, R56, R62, R77, R79, R80, R85, R87, R92, R95, R113."""
    replies = await converse(api, protocol)

    exchange = {"requests": api.requests(), "replies": [plain(reply) for reply in replies]}
    assert api.violations() == []
    assert exchange == golden(f"exchanges/{api.name}-{protocol}", exchange)


async def converse(api: Vendor, protocol_name: ToolProtocol) -> list[ModelReply]:
    """Run two iterations like a model step."""
    model = api.play(*SCRIPTS[protocol_name])
    protocol = protocol_for(protocol_name)
    system = enhance("You keep notes.", TOOLS, protocol_name, mermaid=False).text
    history: list[Message] = [UserMessage(message_id="m1", content="What do I have to do?")]
    replies: list[ModelReply] = []
    for _ in SCRIPTS[protocol_name]:
        request = protocol.prepare(ModelRequest(model, system, tuple(history), TOOLS, OPTIONS, "c1"))
        replies.append(await api.provider.complete(request, deltas=Shown(), deadline_s=30))
        history += reply_and_results(protocol_name, api.name, replies[-1])
    return replies


def reply_and_results(protocol: ToolProtocol, vendor: str, reply: ModelReply) -> list[Message]:
    reading = protocol_for(protocol).read(reply)
    if not isinstance(reading, RequestedCalls):
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
    assistant = AssistantMessage(
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
    return [assistant, *results]
