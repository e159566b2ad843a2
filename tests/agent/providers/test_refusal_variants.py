"""Refusals that users of other clients reported: what the next request has, and when it is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from tests.agent.providers.test_chunk_shapes import DONE, FINISH, LS, call, chunk, sse
from tests.agent.providers.test_openai_wire import complete, upstream
from tests.agent.providers.test_refusals import error
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.faults import TransientFault, retry_after_s, status_fault
from banksman.contracts.errors import ContextOverflow, ProviderFailed
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult

OK = sse([chunk(content="Done."), chunk(finish="stop"), DONE])
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "exclusiveMinimum": 0}},
    "required": ["n"],
}
TOOL = ToolDefinition(name="bash", description="Runs a command.", input_schema=SCHEMA)
HISTORY: tuple[Message, ...] = (
    UserMessage(message_id="m1", content="list"),
    AssistantMessage(message_id="m2", content=None, calls=(ToolCall(id="c1", name="bash"),)),
    ToolMessage(name="bash", result=ToolResult(tool_call_id="c1", content={"success": True})),
    UserMessage(message_id="m3", content="and"),
    UserMessage(message_id="m4", content="now?"),
)


Next = Callable[[ModelReply], ModelRequest]
"""Returns the request that follows a reply."""


class Served:
    """A server that refuses requests for which `refusal` returns a body, at an address of no known vendor."""

    def __init__(self, refusal: Callable[[dict[str, Any]], Any], status: int = 400, reply: str = OK) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._refusal, self._status, self._reply = refusal, status, reply

    async def complete(self, *requests: ModelRequest | Next) -> list[ModelReply]:
        runner = web.ServerRunner(web.Server(self._handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        fields = {"max_attempts": 3, "max_wait_s": 0, "first_delay_s": 0}
        providers = Providers(
            ProviderSettings.model_validate({**fields, "providers": {"mine": {"base_url": url}}})
        )
        provider, replies = providers.choose("mine:m")[0], list[ModelReply]()
        try:
            for one in requests:
                request = one if isinstance(one, ModelRequest) else one(replies[-1])
                replies.append(await provider.complete(request, deltas=Shown(), deadline_s=30))
            return replies
        finally:
            await providers.close()
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if (refused := self._refusal(body)) is not None:
            return web.json_response(refused, status=self._status)
        return web.Response(body=self._reply.encode(), content_type="text/event-stream")


def messages(body: dict[str, Any], role: str) -> list[dict[str, Any]]:
    return [one for one in body["messages"] if one["role"] == role]


def alternates(body: dict[str, Any]) -> bool:
    roles = [one["role"] for one in body["messages"]]
    return all(pair != ("user", "user") for pair in pairwise(roles))


def keywords(schema: object) -> set[str]:
    return set(json.dumps(schema).split('"'))


FORMS: Mapping[str, tuple[Callable[[dict[str, Any]], bool], Any, int]] = {
    "max_tokens of a proxied OpenAI": (
        lambda body: "max_completion_tokens" in body,
        error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            code="unsupported_parameter",
        ),
        400,
    ),
    "stream_options at Fireworks": (
        lambda body: "stream_options" not in body,
        error("Extra inputs are not permitted, field: 'stream_options'"),
        400,
    ),
    "stream_options with a list of details": (
        lambda body: "stream_options" not in body,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]},
        422,
    ),
    "the system role of a chat template": (
        lambda body: not messages(body, "system"),
        error("System role not supported"),
        500,
    ),
    "the system prompt of Gemma at Google": (
        lambda body: not messages(body, "system"),
        [error("Developer instruction is not enabled for models/gemma-3-27b-it", code=400)],
        400,
    ),
    "roles at vLLM": (
        alternates,
        {
            "object": "error",
            "message": "After the optional system message, conversation roles must alternate "
            "user/assistant/user/assistant/...",
            "type": "BadRequestError",
            "code": 400,
        },
        400,
    ),
    "roles at llama.cpp": (
        alternates,
        error(
            "While executing CallExpression: Jinja Exception: Conversation roles must alternate "
            "user/assistant/user/assistant/...",
            type="server_error",
            code=500,
        ),
        500,
    ),
    "a user after a tool at vLLM": (
        lambda body: _after_tool(body) == "assistant",
        error("Unexpected role 'user' after role 'tool'"),
        400,
    ),
    "ids of Mistral behind a proxy": (
        lambda body: all(len(one["tool_call_id"]) == 9 for one in messages(body, "tool")),
        error("Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9."),
        400,
    ),
    "names of results at Groq behind a proxy": (
        lambda body: not any("name" in one for one in messages(body, "tool")),
        error(
            "'messages.3' : for 'role:tool' the following must be satisfied[('messages.3' : property "
            "'name' is unsupported)]"
        ),
        400,
    ),
    "null as content": (
        lambda body: all(one["content"] is not None for one in messages(body, "assistant")),
        error("messages[2].content: Input should be a valid string"),
        422,
    ),
    "reasoning that Kimi misses": (
        lambda body: all(one.get("reasoning_content") for one in messages(body, "assistant")),
        error(
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"
        ),
        400,
    ),
    "reasoning that DeepSeek misses": (
        lambda body: all(one.get("reasoning_content") for one in messages(body, "assistant")),
        error("The `reasoning_content` in the thinking mode must be passed back to the API."),
        400,
    ),
    "a schema that Gemini behind a proxy refuses": (
        lambda body: "exclusiveMinimum" not in keywords(body["tools"]),
        error(
            'Invalid JSON payload received. Unknown name "exclusiveMinimum" at '
            "'tools[0].function_declarations[0].parameters': Cannot find field."
        ),
        400,
    ),
    "a schema that Kimi behind a proxy refuses": (
        lambda body: "exclusiveMinimum" not in keywords(body["tools"]),
        error(
            "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path ...>"
        ),
        400,
    ),
}


def _after_tool(body: dict[str, Any]) -> str:
    roles = [one["role"] for one in body["messages"]]
    return roles[roles.index("tool") + 1]


@pytest.mark.parametrize("form", FORMS)
async def test_a_refused_form_is_replaced_at_once_and_for_later_requests(form: str) -> None:
    accepts, refusal, status = FORMS[form]
    served = Served(lambda body: None if accepts(body) else refusal, status)
    request = ModelRequest("m", "Be brief.", HISTORY, (TOOL,), ModelOptions(max_tokens=100))

    replies = await served.complete(request, request)

    assert [reply.text for reply in replies] == ["Done.", "Done."]
    assert [accepts(body) for body in served.bodies] == [False, True, True]


async def test_a_form_that_is_refused_again_fails_with_its_reason() -> None:
    served = Served(lambda _: error("Extra inputs are not permitted, field: 'stream_options'"))

    with pytest.raises(ProviderFailed, match="stream_options"):
        await served.complete(ModelRequest("m", "", HISTORY))

    assert len(served.bodies) == 2


async def test_messages_of_a_user_in_sequence_are_one_for_models_whose_template_demands_it() -> None:
    served = Served(lambda _: None)

    await served.complete(ModelRequest("google/gemma-3-27b-it", "", HISTORY))

    assert [one["content"] for one in messages(served.bodies[0], "user")] == ["list", "and\n\nnow?"]


TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 36278"
    ". The input or output tokens must be reduced in order to run successfully."
)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, error(TOO_LARGE, type="tokens", code="rate_limit_exceeded")),
        (
            400,
            {
                "code": 20015,
                "message": "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
            },
        ),
        (
            400,
            error("the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model"),
        ),
        (
            400,
            error(
                "Unable to submit request because the input token count is 40000 but model only supports up "
                "to 32768."
            ),
        ),
        (400, [error("Request payload size exceeds the limit: 20971520 bytes.", code=400)]),
        (400, error("Total tokens of image and text exceed max message tokens.")),
    ],
    ids=["OpenAI's limit per minute", "SiliconFlow", "watsonx", "Vertex", "Gemini", "Volcengine"],
)
async def test_a_request_that_is_too_long_is_recognised(status: int, body: Any) -> None:
    served = Served(lambda _: body, status)

    with pytest.raises(ContextOverflow):
        await served.complete(ModelRequest("m", "", HISTORY))

    assert len(served.bodies) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, error("Insufficient Balance")),
        (402, {"error": "You have exceeded your monthly included credits for Inference Providers."}),
        (400, error("Your credit balance is too low to access the API.", type="invalid_request_error")),
        (
            403,
            error("Your team has used all available credits or reached its monthly spending limit."),
        ),
        (403, error("The free tier of the model has been exhausted.", code="AllocationQuota.FreeTierOnly")),
    ],
    ids=["DeepSeek", "Hugging Face", "Anthropic", "xAI", "DashScope"],
)
async def test_an_account_without_money_lets_another_model_reply(status: int, body: Any) -> None:
    served = Served(lambda _: body, status)

    with pytest.raises(ProviderFailed) as failure:
        await served.complete(ModelRequest("m", "", HISTORY))

    assert (failure.value.unavailable, len(served.bodies)) == (True, 1)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("Failed to call a function. See 'failed_generation'.", code="tool_use_failed")),
        (424, {"message": "The model failed. Retry your request."}),
        (400, error("Model produced invalid sequence as part of ToolUse.")),
    ],
    ids=["Groq", "Bedrock", "Nova"],
)
async def test_a_reply_that_its_server_could_not_read_is_requested_again(status: int, body: Any) -> None:
    refusals = iter([body])
    served = Served(lambda _: next(refusals, None), status)

    assert [one.text for one in await served.complete(ModelRequest("m", "", HISTORY))] == ["Done."]
    assert len(served.bodies) == 2


def in_an_hour() -> dict[str, str]:
    """Return the forms of a time."""
    moment = time.time() + 3600
    return {
        "EPOCH": str(int(moment)),
        "EPOCH_MS": str(int(moment * 1000)),
        "HTTP": formatdate(moment, usegmt=True),
        "ISO": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)),
    }


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "30s"}, 30),
        ({"retry-after": "HTTP"}, 3600),
        ({"retry-after": "EPOCH"}, 3600),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, 360),
        (
            {
                "x-ratelimit-reset-requests": "2m59.56s",
                "x-ratelimit-remaining-requests": "14000",
                "x-ratelimit-reset-tokens": "7.66s",
                "x-ratelimit-remaining-tokens": "0",
            },
            7.66,
        ),
        ({"x-ratelimit-reset-tokens": "120ms", "x-ratelimit-remaining-tokens": "0"}, 0.12),
        ({"x-ratelimit-reset": "EPOCH_MS", "x-ratelimit-remaining": "0"}, 3600),
        ({"ratelimitbysize-reset": "31", "ratelimitbysize-remaining": "0"}, 31),
        (
            {
                "anthropic-ratelimit-requests-reset": "ISO",
                "anthropic-ratelimit-requests-remaining": "0",
            },
            3600,
        ),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "5"}, None),
        ({"x-ratelimit-reset-tokens": "soon", "x-ratelimit-remaining-tokens": "0"}, None),
        ({"retry-after": "-1"}, None),
    ],
)
def test_the_wait_that_headers_state(headers: dict[str, str], wait_s: float | None) -> None:
    times = in_an_hour()
    fault = status_fault("mine", 429, "x", {name: times.get(text, text) for name, text in headers.items()})

    assert isinstance(fault, TransientFault)
    assert fault.retry_after_s == (None if wait_s is None else pytest.approx(wait_s, abs=wait_s // 100))


def test_a_reset_counts_only_for_a_rate() -> None:
    headers = {"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}

    fault = status_fault("mine", 503, "Down.", headers)

    assert isinstance(fault, TransientFault)
    assert (fault.retry_after_s, retry_after_s(headers)) == (None, None)


@pytest.mark.parametrize(
    ("body", "wait_s"),
    [
        (error("Rate limit reached for gpt-4. Please try again in 0m0.3s. Visit the page."), 0.3),
        (error("Rate limit reached for gpt-4. Please try again in 60ms."), 0.06),
        (error("Requests have exceeded the token rate limit. Please retry after 1 seconds."), 1),
        (error("No.", metadata={"headers": {"X-RateLimit-Reset": "1s", "X-RateLimit-Remaining": "0"}}), 1),
    ],
    ids=["OpenAI", "OpenAI, short", "Azure", "OpenRouter"],
)
async def test_the_wait_that_a_body_states(body: Any, wait_s: float) -> None:
    refusals = iter([body])

    async def handle() -> web.StreamResponse:
        if (refused := next(refusals, None)) is not None:
            return web.json_response(refused, status=429)
        return web.Response(body=OK.encode(), content_type="text/event-stream")

    shown = Shown()
    async with upstream(handle) as (url, _):
        assert (await complete(url, deltas=shown, max_wait_s=60, first_delay_s=0)).text == "Done."

    assert [pause.next_attempt_s for pause in shown.pauses] == [pytest.approx(wait_s, rel=0.11)]


async def test_a_wait_that_is_longer_than_the_longest_ends_the_request() -> None:
    served = Served(
        lambda _: error("Requests have exceeded the rate limit. Please retry after 86400 seconds."), 429
    )

    with pytest.raises(ProviderFailed, match="86400 seconds"):
        await served.complete(ModelRequest("m", "", HISTORY))

    assert len(served.bodies) == 1


LITELLM = "call_1__thought__" + "QUJD+/=" * 20
STATES: Mapping[str, tuple[list[Any], dict[str, Any]]] = {
    "a signature in the id of LiteLLM": (
        [chunk(call("bash", LS, id=LITELLM, index=0)), FINISH],
        {"id": LITELLM},
    ),
    "a signature beside the call of LiteLLM": (
        [
            chunk(
                {**call("bash", LS, id="a", index=0), "provider_specific_fields": {"thought_signature": "S"}}
            ),
            FINISH,
        ],
        {"provider_specific_fields": {"thought_signature": "S"}},
    ),
    "an id of Kimi under another name": (
        [chunk(call("bash", LS, id="functions.bash:0", index=0)), FINISH],
        {"id": "functions.bash:0"},
    ),
}


def after(reply: ModelReply) -> ModelRequest:
    """Return the request with the result of a reply's only call."""
    [requested] = reply.calls
    written = AssistantMessage(
        message_id="m2",
        content=None,
        calls=(ToolCall(id="c1", name="bash", provider_call_id=requested.provider_call_id),),
        provider="mine",
        provider_state=reply.provider_state,
    )
    return ModelRequest("m", "", (HISTORY[0], written, HISTORY[2]), (TOOL,))


@pytest.mark.parametrize("state", STATES)
async def test_the_state_of_a_call_goes_back_to_its_address_only(state: str) -> None:
    events, expected = STATES[state]
    served, elsewhere = Served(lambda _: None, reply=sse([*events, DONE])), Served(lambda _: None)

    replies = await served.complete(ModelRequest("m", "", HISTORY[:1], (TOOL,)), after)
    await elsewhere.complete(after(replies[0]))

    [returned], [result] = messages(served.bodies[1], "assistant"), messages(served.bodies[1], "tool")
    [foreign] = messages(elsewhere.bodies[0], "assistant")
    assert expected.items() <= returned["tool_calls"][0].items()
    assert result["tool_call_id"] == returned["tool_calls"][0]["id"]
    assert not any(foreign["tool_calls"][0].get(name) == value for name, value in expected.items())


async def test_signed_thinking_blocks_of_litellm_go_back_in_order() -> None:
    def piece(thinking: str = "", signature: str = "") -> dict[str, Any]:
        return chunk(thinking_blocks=[{"type": "thinking", "thinking": thinking, "signature": signature}])

    pieces = [piece("A"), piece("B"), piece(signature="S1"), piece("C"), piece(signature="S2")]
    served = Served(
        lambda _: None, reply=sse([*pieces, chunk(call("bash", LS, id="a", index=0)), FINISH, DONE])
    )

    [reply] = await served.complete(ModelRequest("m", "", HISTORY[:1], (TOOL,)))

    assert (reply.provider_state or {})["thinking_blocks"] == [
        {"type": "thinking", "thinking": "AB", "signature": "S1"},
        {"type": "thinking", "thinking": "C", "signature": "S2"},
    ]


@pytest.mark.parametrize(("path", "hint"), [("", True), ("/", True), ("/v1", False)])
async def test_an_address_without_its_version_is_named(path: str, hint: bool) -> None:
    async def handle() -> web.StreamResponse:
        return web.Response(status=404, text="404 page not found")

    async with upstream(handle) as (url, _):
        with pytest.raises(ProviderFailed, match="404 page not found") as failure:
            await complete(f"{url}{path}")

    assert ("need /v1 in base_url" in str(failure.value)) == hint
