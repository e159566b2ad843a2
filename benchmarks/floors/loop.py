"""Floor: only the model requests of a run, in one process. Prints the results as JSON.

Run: python -m benchmarks.floors.loop URL aiohttp|openai|anthropic [--in-flight 16] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic, DefaultAioHttpClient
from benchmarks.harness.load import under_load
from benchmarks.harness.scripts import CALLS, FINAL
from openai import AsyncOpenAI
from openai import DefaultAioHttpClient as OpenAIHttpClient

from banksman.runtime.event_loop import run

Messages = list[dict[str, Any]]
Complete = Callable[[Messages], Awaitable[dict[str, Any]]]
"""Requests a model reply and returns it as a message of the history."""

MODEL = "scripted/add"
TOOL = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FUNCTION = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": TOOL}}


@asynccontextmanager
async def over_aiohttp(url: str) -> AsyncGenerator[Complete]:
    """Send requests and parse the events of the replies without an SDK."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def complete(messages: Messages) -> dict[str, Any]:
            body = {"model": MODEL, "messages": messages, "tools": [FUNCTION], "stream": True}
            message: dict[str, Any] = {"role": "assistant", "content": ""}
            async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            _take(message, choice["delta"])
            return message

        yield complete


@asynccontextmanager
async def over_openai(url: str) -> AsyncGenerator[Complete]:
    """Send requests with OpenAI's SDK."""
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="sk-bench", http_client=OpenAIHttpClient(trust_env=False)
    ) as sdk:

        async def complete(messages: Messages) -> dict[str, Any]:
            message: dict[str, Any] = {"role": "assistant", "content": ""}
            history: Any = messages
            tools: Any = [FUNCTION]
            chunks = await sdk.chat.completions.create(
                model=MODEL, messages=history, tools=tools, stream=True
            )
            async for chunk in chunks:
                for choice in chunk.choices:
                    _take(message, choice.delta.model_dump(exclude_unset=True))
            return message

        yield complete


@asynccontextmanager
async def over_anthropic(url: str) -> AsyncGenerator[Complete]:
    """Send requests with Anthropic's SDK."""
    async with AsyncAnthropic(
        base_url=url, api_key="sk-bench", http_client=DefaultAioHttpClient(trust_env=False)
    ) as sdk:

        async def complete(messages: Messages) -> dict[str, Any]:
            history: Any = messages
            tools: Any = [{"name": "add", "description": "Add.", "input_schema": TOOL}]
            async with sdk.messages.stream(
                model=MODEL, messages=history, tools=tools, max_tokens=1000
            ) as stream:
                reply = await stream.get_final_message()
            return {"role": "assistant", "content": [block.to_dict() for block in reply.content]}

        yield complete


def _take(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta of the OpenAI format to a message."""
    message["content"] += delta.get("content") or ""
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        for name, text in part["function"].items():
            calls[part["index"]]["function"][name] += text or ""


def results(message: dict[str, Any]) -> Messages:
    """Return the messages with the results of a reply's calls, empty if there are none."""
    if isinstance(message["content"], list):
        found = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "2"}
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        return [{"role": "user", "content": found}] if found else []
    calls = message.get("tool_calls", [])
    return [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in calls]


CLIENTS = {"aiohttp": over_aiohttp, "openai": over_openai, "anthropic": over_anthropic}


async def main(url: str, kind: str, in_flight: int, seconds: float) -> dict[str, float]:
    """Execute runs and return the throughput and the CPU time of this process."""
    cpu: list[float] = []
    async with CLIENTS[kind](url) as complete:

        async def execute() -> None:
            messages: Messages = [{"role": "user", "content": "Add the numbers."}]
            for _ in range(CALLS + 1):
                message = await complete(messages)
                messages += [message, *results(message)]
            assert FINAL in str(messages[-1]["content"]), messages

        def note() -> None:
            cpu.append(time.process_time())

        window = await under_load(execute, in_flight, seconds, begins=note, ends=note)
    return {"runs_per_s": window.per_s, "cpu_ms_per_run": (cpu[1] - cpu[0]) * 1000 / window.done}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    print(json.dumps(run(main(given.url, given.client, given.in_flight, given.seconds))))
