"""Tool calls written as strict JSON text (spec 000)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System

TEXT = {"tool_protocol": "json_text"}


def call(tool: str, terminate: bool = False, **parameters: Any) -> ScriptedReply:
    """Return a reply that consists of one call."""
    return ScriptedReply(text=json.dumps({"tool": tool, "parameters": parameters, "terminate": terminate}))


async def test_results_go_back_to_the_model_until_it_replies_in_text(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R1, R2, R6: a call with `terminate: false` runs, its result is appended, and the model is called
    again."""
    name = play(call("read_file", path="missing.txt"), ScriptedReply(text="There is no such file."))
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "read missing.txt")

    assert (outcome["status"], outcome["content"]) == ("completed", "There is no such file.")
    assert [entry["tool"] for entry in outcome["tool_calls"]] == ["read_file"]
    second = model.requests(name.rpartition("/")[2])[1]["body"]["messages"]
    assert "Tool result for read_file" in second[-1]["content"]


async def test_a_terminating_call_ends_the_run(client: Client, play: Play, model: ScriptedModel) -> None:
    """R3: with `terminate: true` the result is the final reply, and there is no further model request."""
    name = play(call("web_fetch", terminate=True, url="http://127.0.0.1:1/"))
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "fetch http://127.0.0.1:1/")

    assert outcome["status"] == "completed"
    assert json.loads(outcome["content"])["success"] is False
    assert len(model.requests(name.rpartition("/")[2])) == 1


async def test_the_prompt_describes_every_tool_and_the_call_format(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R4, R5: the backend enhances the system prompt of the request, given only a prompt's id."""
    name = play(ScriptedReply(text="hello"))
    conversation = await client.create(name, settings=TEXT)
    await client.run(conversation, "hi")

    prompt = model.requests(name.rpartition("/")[2])[0]["body"]["messages"][0]["content"]

    for part in ("bash", "read_file", "write_file", "web_fetch", "`path` (string, required)", '"terminate"'):
        assert part in prompt


async def test_a_malformed_call_is_corrected_and_the_run_continues(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R9, R10: a `terminate` that is not boolean is returned to the model with the broken rule."""
    bad = ScriptedReply(text='{"tool": "read_file", "parameters": {"path": "a"}, "terminate": "false"}')
    name = play(bad, ScriptedReply(text="Sorry, here is my answer."))
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert outcome["status"] == "completed"
    [retry] = client.events(conversation, "protocol.retry")
    assert (retry["data"]["attempt"], "terminate" in retry["data"]["error"]) == (1, True)
    assert "terminate" in model.requests(name.rpartition("/")[2])[1]["body"]["messages"][-1]["content"]


async def test_three_malformed_calls_in_a_row_end_the_run(client: Client, play: Play) -> None:
    """R10: after three failed corrections the run ends with an error."""
    name = play(*[ScriptedReply(text='{"tool": "bash", ')] * 4)
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "malformed_calls")


async def test_plain_text_is_the_final_reply_without_a_loop(client: Client, play: Play) -> None:
    """R11: text without a call goes to the frontend unchanged."""
    conversation = await client.create(play(ScriptedReply(text="Just an answer.")), settings=TEXT)

    outcome = await client.run(conversation, "hi")

    assert (outcome["content"], outcome["tool_calls"], outcome["iterations"]) == ("Just an answer.", [], 1)


async def test_no_part_of_a_call_reaches_the_client_as_text(client: Client, play: Play) -> None:
    """R20, R16: the backend removes calls from the stream; clients never parse them."""
    written = 'Let me look. {"tool": "read_file", "parameters": {"path": "x"}, "terminate": false}'
    name = play(ScriptedReply(text=written, chunk_chars=3), ScriptedReply(text="Done."))
    conversation = await client.create(name, settings=TEXT)

    await client.run(conversation, "go")

    streamed = "".join(f["data"]["text"] for f in client.frames if f["type"] == "message.delta")
    assert "parameters" not in streamed
    assert streamed.replace(" ", "") == "Letmelook.Done."


@pytest.mark.parametrize("path", ["/tools/available", "/v1/tools", "/tools"])
async def test_there_is_no_endpoint_for_tools(system: System, path: str) -> None:
    """R14: tools belong to the model; no frontend lists them."""
    import httpx

    async with httpx.AsyncClient(base_url=system.url) as http:
        assert (await http.get(path)).status_code == 404
