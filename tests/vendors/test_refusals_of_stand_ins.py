"""The stand-ins refuse what their vendors refuse, with the vendor's status and error body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.support.vendors.anthropic import Anthropic
from tests.support.vendors.base import Json, StandIn
from tests.support.vendors.bedrock import Bedrock
from tests.support.vendors.deepseek import DeepSeek
from tests.support.vendors.gemini import Gemini
from tests.support.vendors.gemini_openai import GeminiOpenAI
from tests.support.vendors.groq import Groq
from tests.support.vendors.llama_cpp import LlamaCpp
from tests.support.vendors.mistral import Mistral
from tests.support.vendors.ollama import Ollama
from tests.support.vendors.openai_chat import OpenAIChat
from tests.support.vendors.openai_responses import OpenAIResponses
from tests.support.vendors.vllm import VLLM
from tests.support.vendors.xai import XAI
from tests.vendors.brain import brain

USER: Json = {"role": "user", "content": "hello"}
IMAGE: Json = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}],
}


def function(name: str = "f", **schema: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def called(call_id: str = "call_1", **fields: Any) -> Json:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answered(call_id: str = "call_1", **fields: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "{}", **fields}


OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
SPEC: Json = {"toolSpec": {"name": "f", "inputSchema": {"json": OBJECT}}}
THOUGHT: Json = {"type": "thinking", "thinking": "I think.", "signature": "forged"}
USE: Json = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


@dataclass(frozen=True)
class Case:
    stand_in: type[StandIn]
    body: Json
    text: str
    status: int = 400
    path: str = ""


def chat(stand_in: type[StandIn], text: str, *messages: Json, status: int = 400, **fields: Any) -> Case:
    body = {"model": stand_in.model, "messages": list(messages or (USER,)), "stream": True, **fields}
    return Case(stand_in, body, text, status, f"{stand_in.prefix}/chat/completions")


def claude(text: str, *messages: Json, **fields: Any) -> Case:
    body = {
        "model": "claude",
        "max_tokens": 5_000,
        "stream": True,
        "messages": list(messages or (USER,)),
        **fields,
    }
    return Case(Anthropic, body, text, path="/v1/messages")


def gemini(text: str, *contents: Json, **fields: Any) -> Case:
    path = "/v1beta/models/gemini-3:streamGenerateContent"
    return Case(Gemini, {"contents": list(contents), **fields}, text, path=path)


def converse(text: str, *messages: Json, **fields: Any) -> Case:
    path = "/model/claude/converse-stream"
    return Case(Bedrock, {"messages": list(messages), **fields}, text, path=path)


def responses(text: str, *items: Json, **fields: Any) -> Case:
    body = {"model": "gpt-5.4", "input": list(items or (USER,)), "stream": True, **fields}
    return Case(OpenAIResponses, body, text, path="/v1/responses")


CASES = [
    chat(OpenAIChat, "'max_tokens' is not supported", max_tokens=1),
    chat(OpenAIChat, "'temperature' does not support", temperature=0.5),
    chat(
        OpenAIChat,
        "Please use /v1/responses instead",
        tools=[function("f", **OBJECT)],
        reasoning_effort="low",
    ),
    chat(OpenAIChat, "Unrecognized request argument", top_k=1),
    chat(OpenAIChat, "object schema missing properties", tools=[function("f", type="object")]),
    chat(OpenAIChat, "got 'type: \"None\"'", tools=[function("f", properties={})]),
    chat(OpenAIChat, "at the top level", tools=[function("f", **OBJECT, anyOf=[OBJECT])]),
    chat(OpenAIChat, "does not match pattern", tools=[function("a.b", **OBJECT)]),
    chat(
        OpenAIChat,
        "array too long",
        tools=[function(f"f{number}", **OBJECT) for number in range(129)],
    ),
    chat(OpenAIChat, "did not have response messages: call_1", USER, called(), USER),
    chat(OpenAIChat, "must be a response to a preceding message", USER, answered()),
    chat(OpenAIChat, "string too long", USER, called("c" * 65), answered("c" * 65)),
    responses("not found", {"type": "reasoning", "id": "rs_1", "summary": []}),
    responses(
        "could not be verified",
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "forged"},
    ),
    responses(
        "No tool output found",
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    ),
    responses("No tool call found", {"type": "function_call_output", "call_id": "c1", "output": "{}"}),
    responses(
        "'additionalProperties' is required",
        tools=[{"type": "function", "name": "f", "parameters": OBJECT, "strict": True}],
    ),
    responses("Unknown or invalid parameter", messages=[]),
    claude('first message must use the "user" role', {"role": "assistant", "content": "hi"}),
    claude("Extra inputs are not permitted", reasoning_effort="low"),
    claude("without `tool_result` blocks", USER, {"role": "assistant", "content": [USE]}, USER),
    claude(
        "unexpected `tool_use_id`",
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]},
    ),
    claude("Invalid `signature`", USER, {"role": "assistant", "content": [THOUGHT]}, USER),
    claude("must be non-empty", {"role": "user", "content": [{"type": "text", "text": " "}]}),
    claude("must be greater than", thinking={"type": "enabled", "budget_tokens": 5_000}),
    claude(
        "oneOf, allOf, or anyOf at the top", tools=[{"name": "f", "input_schema": {**OBJECT, "oneOf": []}}]
    ),
    claude(
        "A maximum of 4 blocks with cache_control",
        system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5,
    ),
    claude(
        "Expected `thinking` or `redacted_thinking`",
        USER,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]},
        thinking={"type": "enabled", "budget_tokens": 2_000},
    ),
    gemini('Unknown name "tool_calls"', {"role": "user", "parts": [{"text": "a"}], "tool_calls": []}),
    gemini(
        'Unknown name "exclusiveMinimum"',
        {"role": "user", "parts": [{"text": "a"}]},
        tools=[
            {
                "functionDeclarations": [
                    {
                        "name": "f",
                        "parameters": {
                            "type": "OBJECT",
                            "properties": {"a": {"type": "NUMBER", "exclusiveMinimum": 0}},
                        },
                    }
                ]
            }
        ],
    ),
    gemini(
        "missing a thought_signature",
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
    ),
    gemini(
        "number of function response parts",
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
    ),
    chat(Mistral, "Extra inputs are not permitted", status=422, stream_options={"include_usage": True}),
    chat(Mistral, "with a length of 9", USER, called(), answered()),
    chat(
        Mistral,
        "Unexpected role 'user' after role 'tool'",
        USER,
        called("abcdefghi"),
        answered("abcdefghi"),
        USER,
    ),
    chat(Mistral, "Expected last role User or Tool", USER, {"role": "assistant", "content": "hi"}),
    chat(
        Groq,
        "property 'reasoning_content' is unsupported",
        USER,
        {**called(), "reasoning_content": "x"},
        answered(),
    ),
    chat(Groq, "must be a string", IMAGE),
    chat(
        Groq,
        "cannot be combined",
        tools=[function("f", **OBJECT)],
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}},
    ),
    chat(DeepSeek, "Missing `reasoning_content` field", USER, called(), answered()),
    chat(DeepSeek, "invalid type: sequence", IMAGE, status=422),
    chat(
        DeepSeek,
        "response_format type is unavailable",
        response_format={"type": "json_schema", "json_schema": {"name": "a"}},
    ),
    chat(DeepSeek, "unknown variant `developer`", {"role": "developer", "content": "x"}, status=422),
    chat(XAI, "Argument not supported on this model", reasoning_effort="low"),
    chat(Ollama, "invalid image input", IMAGE),
    chat(VLLM, "is not a multimodal model", IMAGE),
    chat(VLLM, "must be at the beginning", USER, {"role": "system", "content": "x"}),
    chat(LlamaCpp, "image input is not supported", IMAGE, status=500),
    chat(
        LlamaCpp,
        "Pattern must start with",
        tools=[function("f", type="object", properties={"a": {"type": "string", "pattern": "[a-z]"}})],
    ),
    chat(
        LlamaCpp,
        "Error resolving ref",
        tools=[function("f", type="object", properties={"a": {"$ref": "#/$defs/b"}})],
    ),
    chat(
        GeminiOpenAI,
        'Unknown name "additionalProperties"',
        tools=[function("f", **OBJECT, additionalProperties=False)],
    ),
    chat(GeminiOpenAI, "missing a thought_signature", USER, called(), answered(name="f")),
    chat(
        GeminiOpenAI,
        "Corrupted thought signature",
        USER,
        called(extra_content={"google": {"thought_signature": "forged"}}),
        answered(),
    ),
    converse("is blank", {"role": "user", "content": [{"text": " "}]}),
    converse("must start with a user message", {"role": "assistant", "content": [{"text": "a"}]}),
    converse("must alternate", *[{"role": "user", "content": [{"text": "a"}]}] * 2),
    converse("Unknown parameter", {"role": "user", "content": [{"text": "a"}], "name": "b"}),
    converse(
        "Expected toolResult blocks",
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}]},
        {"role": "user", "content": [{"text": "a"}]},
        toolConfig={"tools": [SPEC]},
    ),
    converse(
        "toolConfig field must be defined",
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}]},
    ),
    converse(
        "failed to satisfy constraint",
        {"role": "user", "content": [{"text": "a"}]},
        toolConfig={"tools": [{"toolSpec": {"name": "a.b", "inputSchema": {"json": OBJECT}}}]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.stand_in.name}: {case.text}")
async def test_a_stand_in_refuses_as_its_vendor(case: Case) -> None:
    async with case.stand_in.running(brain) as server, aiohttp.ClientSession() as session:
        async with session.post(server.url + case.path, json=case.body) as response:
            body = await response.text()

    assert response.status == case.status, body
    assert case.text.replace('"', '\\"') in body
    assert len(server.refusals) == 1
