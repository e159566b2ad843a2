from __future__ import annotations

import json
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage
from pydantic import ValidationError
from tests.support.model_server import ModelServer
from tests.support.scripted_models import HttpError, Script, ScriptedCall, ScriptedReply

SEQUENCE = [ScriptedReply(text="first"), ScriptedReply(text="second"), ScriptedReply(text="third")]


def history(*replies: str, opening: str = "hello") -> Any:
    """Return a conversation in which the model has replied with these texts."""
    messages = [{"role": "user", "content": opening}]
    for text in replies:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    return messages


async def complete(openai: AsyncOpenAI, model: str, messages: Any) -> ChatCompletionMessage:
    completion = await openai.chat.completions.create(model=model, messages=messages)
    return completion.choices[0].message


async def test_script_advances_with_the_position_in_the_conversation(
    server: ModelServer, openai: AsyncOpenAI
):
    model = server.play("story", SEQUENCE)
    requests = [history(), history("a"), history("a"), history(), history("a", "b")]
    replies = [(await complete(openai, model, messages)).content for messages in requests]
    assert replies == ["first", "second", "second", "first", "third"]


async def test_script_can_advance_with_the_number_of_requests(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("story", SEQUENCE, by="count")
    replies = [(await complete(openai, model, history())).content for _ in range(3)]
    assert replies == ["first", "second", "third"]


@pytest.mark.parametrize(("at_end", "replies"), [("repeat", "third"), ("loop", "second")])
async def test_script_can_repeat_or_loop_at_its_end(
    server: ModelServer, openai: AsyncOpenAI, at_end: Any, replies: str
):
    model = server.play("story", SEQUENCE, at_end=at_end)
    message = await complete(openai, model, history("a", "b", "c", "d"))
    assert message.content == replies


async def test_exhausted_script_refuses_requests(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("story", SEQUENCE)
    with pytest.raises(sdk.BadRequestError) as caught:
        await complete(openai, model, history("a", "b", "c"))
    assert caught.value.code == "script_exhausted"
    assert [violation.model for violation in server.violations] == [model]


async def test_random_call_ids_never_repeat(server: ModelServer, openai: AsyncOpenAI):
    calls = (ScriptedCall(name="bash"), ScriptedCall(name="bash"))
    model = server.play("calls", [ScriptedReply(tool_calls=calls)])
    messages = [await complete(openai, model, history()) for _ in range(3)]
    ids = [call.id for message in messages for call in message.tool_calls or ()]
    assert len(set(ids)) == 6


async def test_derived_call_ids_repeat_for_a_repeated_request_only(server: ModelServer, openai: AsyncOpenAI):
    calls = (ScriptedCall(name="bash"), ScriptedCall(name="bash"))
    replies = [ScriptedReply(tool_calls=calls), ScriptedReply(tool_calls=calls)]
    models = [server.play(name, replies, call_ids="derived") for name in ("one", "two")]
    requests = [history(), history("a"), history(opening="other")]

    async def ids() -> list[str]:
        messages = [await complete(openai, model, each) for model in models for each in requests]
        return [call.id for message in messages for call in message.tool_calls or ()]

    first = await ids()
    assert len(set(first)) == 12
    assert await ids() == first


async def test_requests_are_recorded_with_masked_secrets(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("story", SEQUENCE)
    system = {"role": "system", "content": "Sp\u00e4\u00dfe  bleiben   \n stehen."}
    secret = openai.with_options(api_key="sk-very-secret", default_headers={"x-trace": "abc"})
    await complete(secret, model, [system, *history()])
    (request,) = server.requests("story")
    assert request.body["messages"] == [system, *history()]
    assert json.loads(request.raw) == request.body
    assert (request.dialect, request.path) == ("openai", "/v1/chat/completions")
    assert request.headers["x-trace"] == "abc"
    assert request.headers["authorization"].startswith("Bearer sha256:")
    assert "secret" not in str(request)
    assert server.requests("other") == []


async def test_admin_routes_serve_tests_in_other_processes(server: ModelServer, openai: AsyncOpenAI):
    script = {"replies": [{"text": "from json"}], "at_end": "repeat"}
    async with httpx.AsyncClient(base_url=server.url) as admin:
        loaded = await admin.put("/scripts/remote", json=script)
        assert loaded.json() == {"model": "scripted/remote"}
        assert (await complete(openai, "scripted/remote", history())).content == "from json"
        query = {"script": "remote", "at_least": 1, "wait_s": 5}
        (request,) = (await admin.get("/requests", params=query)).json()
        assert request["body"]["model"] == "scripted/remote"
        assert json.loads(request["raw"]) == request["body"]
        with pytest.raises(sdk.BadRequestError):
            await complete(openai, "scripted/remote", [])
        assert [violation["param"] for violation in (await admin.get("/violations")).json()] == ["messages"]
        assert (await admin.delete("/violations")).status_code == 204
        assert (await admin.delete("/requests")).status_code == 204
        assert (await admin.put("/gates/any")).status_code == 204
        assert (await admin.delete("/scripts/remote")).status_code == 204
        with pytest.raises(sdk.NotFoundError):
            await complete(openai, "scripted/remote", history())
        assert len((await admin.get("/requests")).json()) == 1
    assert server.violations == []


async def test_invalid_script_is_refused_with_the_reason(server: ModelServer):
    async with httpx.AsyncClient(base_url=server.url) as admin:
        response = await admin.put("/scripts/bad", json={"replies": [{"txet": "typo"}]})
        name = await admin.put("/scripts/not%20a%20name", json={"replies": [{"text": "a"}]})
        query = await admin.get("/requests", params={"at_least": "many"})
    assert response.status_code == 400
    assert "txet" in response.text
    assert name.status_code == 400
    assert query.status_code == 400


def test_scripts_load_from_json_with_their_faults():
    script = Script.model_validate_json(
        '{"replies": [{"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]},'
        ' {"fault": {"kind": "http_error", "status": 503}}, {"raw_chunks": ["data: {}"]}]}'
    )
    first, second, _ = script.replies
    assert isinstance(first, ScriptedReply)
    assert first.tool_calls[0].arguments == {"command": "ls"}
    assert isinstance(second, ScriptedReply)
    assert second.fault == HttpError(status=503)
    with pytest.raises(ValidationError, match="frozen"):
        first.text = "changed"
    with pytest.raises(ValidationError):
        Script(replies=())
