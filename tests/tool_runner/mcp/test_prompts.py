"""Prompts of servers: what is listed of hostile ones, and the text that a user gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.support.paths import ROOT
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client

from banksman.contracts.mcp import ServedPrompt, StdioServer
from banksman.contracts.runner_requests import GetMcpPrompt
from banksman.tool_runner.mcp.prompts import MAX_LISTED_BYTES, MAX_PROMPTS
from banksman.tool_runner.mcp.servers import ListingFailed, McpClient
from banksman.tool_runner.mcp.session import ServedTools
from banksman.tool_runner.settings import RunnerLimits

TOKEN = "a-token-of-a-tenant"
SERVER = ROOT / "tests/tool_runner/mcp/prompt_server.py"

pytestmark = only("bwrap", "containers of the backend docker have no channel")


@pytest.fixture
async def servers(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    (runner.workspace.directory / "server.py").write_bytes(SERVER.read_bytes())
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


def program(faults: str) -> StdioServer:
    return StdioServer(
        command=("/usr/bin/python3", "/workspace/server.py"), env={"TOKEN": TOKEN, "FAULTS": faults}
    )


async def listed(servers: McpClient, runner: Runner, faults: str = "none") -> ServedTools:
    return await servers.list_tools(program(faults), runner.workspace)


async def got(servers: McpClient, runner: Runner, faults: str = "none") -> str:
    request = GetMcpPrompt(transport=program(faults), name="summary", arguments={"topic": "cranes"})
    return await servers.prompt(request, runner.workspace)


async def test_a_prompt_is_listed_without_what_does_not_show_and_unusable_ones_are_left_out(
    servers: McpClient, runner: Runner
) -> None:
    (prompt,) = (await listed(servers, runner)).prompts
    assert prompt == ServedPrompt(
        name="summary",
        title="Summary",
        description="Summarizes a text.\\nIn lines \\u001b[31m\\u202eetirw\\u200b «hidden»",
        arguments=prompt.arguments,
    )
    assert [(one.name, one.description, one.required) for one in prompt.arguments] == [
        ("topic", "What it is about", True),
        ("tone", "", False),
    ]


async def test_the_text_of_a_prompt_shows_hidden_characters_and_no_secret(
    servers: McpClient, runner: Runner
) -> None:
    text = await got(servers, runner)
    assert text == (
        'Summarize {"topic": "cranes"}.\n'
        "Price \\u001b[31m\\u202eetirw\\u200b «hidden»\n\nof a file\n\n[image]"
    )


@pytest.mark.parametrize(("faults", "count"), [("many", MAX_PROMPTS), ("huge-list", 0), ("no-list", 0)])
async def test_prompts_are_listed_within_bounds_and_never_hide_the_tools(
    servers: McpClient, runner: Runner, faults: str, count: int
) -> None:
    found = await listed(servers, runner, faults)
    assert "echo" in {tool.name for tool in found.usable}
    assert len(found.prompts) == count
    assert sum(len(one.model_dump_json()) for one in found.prompts) <= MAX_LISTED_BYTES


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ("huge", "the prompt has 200020 characters; at most 100000 are accepted"),
        ("too-long", "the server sent a message of more than 1048576 bytes"),
        ("refuses", "the server responded with an error: no prompts/get for «hidden»"),
    ],
)
async def test_a_text_that_cannot_be_used_is_refused_with_the_reason(
    servers: McpClient, runner: Runner, faults: str, reason: str
) -> None:
    with pytest.raises(ListingFailed) as failed:
        await got(servers, runner, faults)
    assert str(failed.value) == reason


async def test_a_prompt_that_never_answers_ends_within_its_time(servers: McpClient, runner: Runner) -> None:
    with pytest.raises(ListingFailed, match="the server did not return the prompt within 2 s"):
        await got(replace(servers, read_s=2.0), runner, "silent")
