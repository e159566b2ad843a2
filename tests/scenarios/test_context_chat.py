"""The agent behind `/context/chat`: the path selects the enhanced, agent-driven chat (R26)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.support.scripted_models import HttpError, ScriptedCall, ScriptedReply, Silence
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

READ = ScriptedCall(name="read_file", arguments={"path": "missing.txt"})
ASKED: list[Any] = [{"role": "user", "content": "What does missing.txt say?"}]
CURLY = "Answer in verse. {{user_message}} is no variable."


@pytest.fixture
async def vendor(system: System) -> AsyncGenerator[openai.AsyncOpenAI]:
    """OpenAI's SDK with its retries, pointed at the agent."""
    async with openai.AsyncOpenAI(base_url=f"{system.url}/context", api_key="local") as client:
        yield client


def message_of_user(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_openais_sdk_completes_a_run_of_the_agent(
    vendor: openai.AsyncOpenAI, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R26, R24: the server adds prompt and tools, executes the call, and returns the final message."""
    name = play(ScriptedReply(tool_calls=(READ,)), ScriptedReply(text="There is no such file."))
    system: Any = {"role": "system", "content": CURLY}
    reply = await vendor.chat.completions.create(model=name, messages=[system, *ASKED], temperature=0.5)

    first, second = model_requests(model, name)
    extension: Any = (reply.model_extra or {})["banksman"]
    run = (await http.get(f"/context/runs/{extension['run_id']}")).json()
    assert (reply.object, reply.choices[0].finish_reason) == ("chat.completion", "stop")
    assert reply.choices[0].message.content == "There is no such file."
    assert reply.usage is not None and reply.usage.total_tokens == sum(
        run["usage"][kind] for kind in ("input_tokens", "output_tokens")
    )
    assert first["messages"][0]["content"].startswith(CURLY + "\n\n## Tools")
    assert first["temperature"] == 0.5 and len(first["tools"]) >= 4
    assert second["messages"][-1]["role"] == "tool"
    assert [call["tool"] for call in extension["tool_calls"]] == ["read_file"]
    assert run["conversation_id"] == extension["conversation_id"]


async def test_a_stream_in_openais_format_grows_with_the_reply(
    vendor: openai.AsyncOpenAI, play: Play
) -> None:
    """R26, R30: the last message arrives in pieces; usage and the run follow."""
    name = play(
        ScriptedReply(tool_calls=(READ,)),
        ScriptedReply(text="There is no such file.", chunk_chars=6, chunk_delay_s=0.05),
    )
    stream = await vendor.chat.completions.create(
        model=name, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece or "" for piece in pieces) == "There is no such file."
    assert len([piece for piece in pieces if piece]) > 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


async def test_a_conversation_continues_by_its_id_or_by_its_messages(
    vendor: openai.AsyncOpenAI, play: Play, model: ScriptedModel
) -> None:
    """R26: with an id the server has the history; without one the client's messages are text."""
    name = play(
        ScriptedReply(text="Ada."), ScriptedReply(text="Still Ada."), ScriptedReply(text="Ada again.")
    )
    first = await vendor.chat.completions.create(model=name, messages=[message_of_user("Who?")])
    known: Any = (first.model_extra or {})["banksman"]["conversation_id"]
    history: Any = [
        message_of_user("Who?"),
        {"role": "assistant", "content": "Ada."},
        message_of_user("And now?"),
    ]
    await vendor.chat.completions.create(model=name, messages=history, extra_body={"conversation_id": known})
    await vendor.chat.completions.create(model=name, messages=history)

    _, by_id, by_messages = (request["messages"][1:] for request in model_requests(model, name))
    assert [(message["role"], message["content"]) for message in by_id] == [
        ("user", "Who?"),
        ("assistant", "Ada."),
        ("user", "And now?"),
    ]
    assert len(by_messages) == 1
    assert "user: Who?" in by_messages[0]["content"] and "assistant: Ada." in by_messages[0]["content"]
    assert by_messages[0]["content"].endswith("And now?")


@pytest.mark.parametrize("streams", [False, True])
async def test_anthropics_sdk_completes_a_run_of_the_agent(
    system: System, play: Play, model: ScriptedModel, streams: bool
) -> None:
    """R26: Anthropic's SDK appends `/v1/messages` to its base URL and sends its key in `x-api-key`."""
    name = play(ScriptedReply(tool_calls=(READ,)), ScriptedReply(text="Nothing."), vendor="anthropic")
    request: Any = {"model": name, "max_tokens": 77, "system": "Be brief.", "messages": ASKED}
    async with anthropic.AsyncAnthropic(base_url=f"{system.url}/context/chat", api_key="local") as vendor:
        if streams:
            async with vendor.messages.stream(**request) as stream:
                reply: Any = await stream.get_final_message()
        else:
            reply = await vendor.messages.create(**request)

    [block] = reply.content
    assert (block.type, getattr(block, "text", None)) == ("text", "Nothing.")
    assert reply.stop_reason == "end_turn" and reply.usage.output_tokens > 0
    sent = model_requests(model, name)[0]
    assert sent["max_tokens"] == 77 and "Be brief." in json.dumps(sent["system"])


async def test_an_approval_is_a_comment_of_the_stream_and_the_run_waits(
    http: httpx.AsyncClient, play: Play
) -> None:
    """R26, R12: clients of the vendors' formats skip the comment; the decision is made elsewhere."""
    bash = ScriptedCall(name="bash", arguments={"command": "echo lifted"})
    name = play(ScriptedReply(tool_calls=(bash,)), ScriptedReply(text="It is lifted."))
    body = {"model": name, "messages": ASKED, "stream": True}
    lines: list[str] = []
    asked: Any = {}
    open_ones: list[Any] = []
    async with http.stream("POST", "/context/chat/completions", json=body) as response:
        run_id = response.headers["banksman-run-id"]
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith(": approval.requested "):
                asked = json.loads(line.removeprefix(": approval.requested "))
                open_ones = (await http.get("/context/approvals")).json()["items"]
                await http.post(f"/context/approvals/{asked['approval_id']}", json={"all": "approve"})
    assert asked["items"][0]["arguments"] == {"command": "echo lifted"}
    assert run_id in [item["run_id"] for item in open_ones]
    assert "It is lifted." in "".join(lines) and "data: [DONE]" in lines


async def test_a_client_that_disconnects_cancels_its_run(http: httpx.AsyncClient, play: Play) -> None:
    """R26: no client waits for the reply, and a repeated request must not start the calls a second time."""
    name = play(ScriptedReply(text="late", fault=Silence()))
    created = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    body = {"model": name, "messages": ASKED, "conversation_id": created}
    asking = asyncio.create_task(http.post("/context/chat/completions", json=body))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not (runs := (await http.get(f"/context/conversations/{created}/runs")).json()["items"]):
            pass
    asking.cancel()
    ended = await http.get(f"/context/runs/{runs[0]['run_id']}", params={"wait_s": WAIT_TIMEOUT_S})
    assert ended.json()["status"] == "cancelled"


async def test_a_failed_run_is_an_error_that_sdks_do_not_repeat(
    vendor: openai.AsyncOpenAI, play: Play, model: ScriptedModel
) -> None:
    """R26: after a status of 500 the SDK would start the run again."""
    name = play(*[ScriptedReply(fault=HttpError(status=400, message="No."))] * 2)
    with pytest.raises(openai.BadRequestError) as failed:
        await vendor.chat.completions.create(model=name, messages=ASKED)
    with pytest.raises(openai.APIError) as broken:
        async for _ in await vendor.chat.completions.create(model=name, messages=ASKED, stream=True):
            pass
    assert (failed.value.code, broken.value.code) == ("provider_error", "provider_error")
    assert len(model_requests(model, name)) == 2


async def test_context_chat_returns_the_outcome_or_the_open_approval_request(
    http: httpx.AsyncClient, play: Play
) -> None:
    """R26: `/context/chat` waits for the outcome, and no longer than until a user must decide."""
    bash = ScriptedCall(name="bash", arguments={"command": "echo lifted"})
    name = play(ScriptedReply(text="Hello."), ScriptedReply(tool_calls=(bash,)), ScriptedReply(text="Done."))
    first = await http.post("/context/chat", json={"content": "hi", "model": name})
    conversation = first.json()["conversation_id"]
    second = await http.post("/context/chat", json={"content": "lift", "conversation_id": conversation})
    approval = second.json()["pending_approvals"][0]["approval_id"]
    await http.post(f"/context/approvals/{approval}", json={"all": "approve"})
    ended = await http.get(f"/context/runs/{second.json()['run_id']}", params={"wait_s": WAIT_TIMEOUT_S})
    streamed = await http.post(
        "/context/chat", json={"content": "hi", "model": "demo"}, headers={"accept": "text/event-stream"}
    )
    assert (first.status_code, first.json()["content"]) == (200, "Hello.")
    assert (second.status_code, second.json()["status"]) == (202, "awaiting_approval")
    assert second.json()["conversation_id"] == conversation
    assert ended.json()["content"] == "Done."
    assert "event: run.finished" in streamed.text


async def test_a_thread_of_anthropics_sdk_continues_with_its_whole_history(
    system: System, play: Play, model: ScriptedModel
) -> None:
    """R26: its later requests would have the new messages only, and the agent would not know the others."""
    name = play(ScriptedReply(text="One."), ScriptedReply(text="Two."))
    async with anthropic.AsyncAnthropic(base_url=f"{system.url}/context/chat", api_key="local") as client:
        thread = client.beta.messages.thread(
            model=name, max_tokens=100, unsupported_request_behavior="continue_unthreaded"
        )
        await thread.send(message_of_user("Remember 17."))
        await thread.send(message_of_user("Which number?"))
        refused = client.beta.messages.thread(model=name, max_tokens=100)
        with pytest.raises(anthropic.BadRequestError, match="whole history"):
            await refused.send(message_of_user("hello"))

    _, second = model_requests(model, name)
    assert "Remember 17." in str(second["messages"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content"),
        ({"prompt_id": "default", "conversation_id": "c1"}, "prompt_id"),
        ({"model": "openai:"}, "model"),
        ({"temperature": 9}, "temperature"),
    ],
)
async def test_a_request_that_the_agent_cannot_serve_names_its_field(
    http: httpx.AsyncClient, change: dict[str, Any], field: str
) -> None:
    """R26: the error has OpenAI's format."""
    body = {"model": "demo", "messages": ASKED} | change
    refused = await http.post("/context/chat/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["type"]) == (400, field, "invalid_request_error")
