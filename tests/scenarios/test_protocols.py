"""The tools of the prompt and the calls that models write from it, and both protocols in one loop."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel

TOOL = re.compile(r"^\*\*(?P<name>\w+)\*\*: .+\n(?P<parameters>(?:^- .*\n?)+)", re.MULTILINE)
PARAMETER = re.compile(
    r"^- `(?P<name>\w+)` \((?P<type>[\w ]+), (?P<needed>required|optional)\)", re.MULTILINE
)
EXAMPLES: dict[str, Any] = {
    "string": "http://127.0.0.1:1/a",
    "number": 5,
    "integer": 1,
    "boolean": True,
    "edits": [{"old_text": "a", "new_text": "b"}],
    "encoding": "utf-8",
    "session": "main",
    "language": "bash",
}
"""A value of each type in the prompt, and of parameters with further rules."""
EXCLUDED = {"background"}
"""Parameters that another one rules out."""


@pytest.fixture
async def described(http: httpx.AsyncClient) -> dict[str, dict[str, tuple[str, bool]]]:
    """The tools as the prompt describes them: tool to parameter to its type and whether it is required."""
    prompt = (await http.get("/v1/system-prompts/default/enhanced")).json()["content"]
    return {
        tool["name"]: {
            found["name"]: (found["type"], found["needed"] == "required")
            for found in PARAMETER.finditer(tool["parameters"])
        }
        for tool in TOOL.finditer(prompt)
    }


def calls_by_the_prompt(
    described: dict[str, dict[str, tuple[str, bool]]],
) -> list[tuple[str, dict[str, Any]]]:
    """Return a call of each tool with every parameter in the prompt."""
    return [
        (
            tool,
            {
                name: EXAMPLES[name if name in EXAMPLES else type]
                for name, (type, _) in parameters.items()
                if name not in EXCLUDED
            },
        )
        for tool, parameters in described.items()
    ]


@pytest.mark.parametrize("protocol", ["json_text", "native"])
async def test_calls_written_as_the_prompt_describes_are_accepted(
    client: Client,
    http: httpx.AsyncClient,
    play: Play,
    described: dict[str, dict[str, tuple[str, bool]]],
    protocol: str,
) -> None:
    """R37, R36, R113: calls are validated by the names, types and parameters of the prompt."""
    calls = calls_by_the_prompt(described)
    replies = [_reply(protocol, tool, arguments) for tool, arguments in calls]
    conversation = await _without_approval(client, http, play(*replies, ScriptedReply(text="ok")), protocol)

    outcome = await client.run(conversation, "go", overrides={"max_iterations": len(calls) + 1})

    assert {tool for tool, _ in calls} >= {"bash", "read_file", "write_file", "web_fetch"}
    assert [(entry["tool"], entry["params"]) for entry in outcome["tool_calls"]] == calls
    wrong = {"invalid_arguments", "unknown_tool"}
    refused = [entry for entry in outcome["tool_calls"] if entry["result"].get("error_kind") in wrong]
    assert refused == []
    assert client.events(conversation, "protocol.retry") == []


async def test_a_missing_parameter_that_the_prompt_requires_is_named(
    client: Client, http: httpx.AsyncClient, play: Play, described: dict[str, dict[str, tuple[str, bool]]]
) -> None:
    """R37: each required parameter of the prompt is omitted in turn."""
    needed = [
        (tool, name)
        for tool, params in described.items()
        for name, (_, required) in params.items()
        if required
    ]
    by_tool = dict(calls_by_the_prompt(described))
    replies = [
        _reply("json_text", tool, {k: v for k, v in by_tool[tool].items() if k != name})
        for tool, name in needed
    ]
    conversation = await _without_approval(
        client, http, play(*replies, ScriptedReply(text="ok")), "json_text"
    )

    outcome = await client.run(conversation, "go", overrides={"max_iterations": len(needed) + 1})

    assert len(needed) >= 5
    for (_, name), entry in zip(needed, outcome["tool_calls"], strict=True):
        assert entry["result"]["error_kind"] == "invalid_arguments"
        assert name in entry["result"]["error"]


@pytest.mark.parametrize(
    ("protocol", "vendor"),
    [("native", "openai"), ("native", "anthropic"), ("json_text", "openai"), ("json_text", "anthropic")],
)
async def test_one_loop_serves_both_protocols_of_both_vendors(
    client: Client, http: httpx.AsyncClient, play: Play, protocol: str, vendor: str
) -> None:
    """R113, R21, R18: the same calls, results, events and outcome in every format of the model."""
    steps = [
        ("write_file", {"path": "a.txt", "content": "42\n"}),
        ("bash", {"command": "cat a.txt a.txt > b.txt"}),
        ("read_file", {"path": "b.txt"}),
    ]
    replies = [_reply(protocol, tool, arguments) for tool, arguments in steps]
    name = play(*replies, ScriptedReply(text="It says 42 twice."), vendor=vendor)
    conversation = await _without_approval(client, http, name, protocol)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "It says 42 twice.")
    assert [(e["tool"], e["params"], e["iteration"]) for e in outcome["tool_calls"]] == [
        (tool, arguments, number) for number, (tool, arguments) in enumerate(steps)
    ]
    assert outcome["tool_calls"][-1]["result"]["content"] == "42\n42\n"
    types = [event["type"] for event in client.events(conversation)]
    assert [t for t in types if t.startswith("tool_call")] == [
        "tool_call.requested",
        "tool_call.completed",
    ] * 3


async def test_a_conversation_may_change_its_protocol_and_its_vendor(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R113: calls written natively are read as text by the other, and vice versa."""
    read = ScriptedCall(name="read_file", arguments={"path": "none"})
    name = play(
        ScriptedReply(tool_calls=(read,)),
        ScriptedReply(text="No file."),
        _reply("json_text", "read_file", {"path": "none"}),
        ScriptedReply(text="Still no file."),
        ScriptedReply(text="As I said."),
    )
    other = name.replace("openai:", "anthropic:")
    conversation = await client.create(name)
    as_text = {"model": other, "tool_protocol": "json_text"}

    contents = [
        (await client.run(conversation, "one"))["content"],
        (await client.run(conversation, "two", overrides=as_text))["content"],
        (await client.run(conversation, "three"))["content"],
    ]

    assert contents == ["No file.", "Still no file.", "As I said."]
    requests = model.requests(name.rpartition("/")[2])
    assert [request["dialect"] for request in requests] == ["openai"] * 2 + ["anthropic"] * 2 + ["openai"]
    assert '\\"tool\\": \\"read_file\\"' in json.dumps(model_requests(model, name)[2]["messages"])


async def test_the_prompt_describes_both_values_of_terminate_and_both_work(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R36, R21: parse, execute, then continue or end, as the call specifies."""
    name = play(
        _reply("json_text", "bash", {"command": "echo first"}),
        _reply("json_text", "bash", {"command": "echo last"}, terminate=True),
    )
    conversation = await _without_approval(client, http, name, "json_text")

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"], outcome["iterations"]) == ("completed", "last\n", 2)
    assert len(model_requests(model, name)) == 2


def _reply(protocol: str, tool: str, arguments: dict[str, Any], *, terminate: bool = False) -> ScriptedReply:
    """Return a reply that is one call, as a model would write it."""
    if protocol == "native":
        return ScriptedReply(tool_calls=(ScriptedCall(name=tool, arguments=arguments),))
    return ScriptedReply(text=json.dumps({"tool": tool, "parameters": arguments, "terminate": terminate}))


async def _without_approval(client: Client, http: httpx.AsyncClient, model: str, protocol: str) -> str:
    """Create a conversation whose calls need no approval."""
    body = {
        "model": model,
        "tools": {"enabled": True, "tool_protocol": protocol},
        "approval_policy": [{"action": "auto"}],
    }
    assistant = (await http.post("/context/assistants", json=body)).json()["id"]
    return await client.create(assistant=assistant)
