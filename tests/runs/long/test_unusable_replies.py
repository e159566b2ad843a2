"""Paid replies that an unforeseen error makes unusable: the run ends, and the vendor is not paid again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from banksman.agent.protocols.base import ModelReply, ModelRequest, RawCall
from banksman.agent.providers.base import DeltaSink, Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.facts import Facts
from banksman.contracts.events import MessageCompleted
from banksman.contracts.messages import Usage
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schema_checks.checker import ArgumentProblem, SchemaChecker
from tests.runs.long.conftest import Agent

USAGE = Usage(input_tokens=700, output_tokens=30)
LOOK = RawCall("c1", "read_file", '{"path": "a.txt"}')

Write = Callable[[DeltaSink], Awaitable[ModelReply]]


class Adapter:
    """A provider with an error of its own."""

    name = "openai"

    def __init__(self, write: Write) -> None:
        self.write = write
        self.requests = 0

    async def complete(
        self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float, wait_s: float | None = None
    ) -> ModelReply:
        self.requests += 1
        return await self.write(deltas)

    def facts(self, model: str) -> Facts:
        return Facts()

    def warm(self) -> None:
        pass

    async def close(self) -> None:
        pass


class OneProvider(Providers):
    """Chooses the same provider for every model."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(ProviderSettings())
        self.provider = provider

    def choose(self, model: str, tenant: str | None = None) -> tuple[Provider, str]:
        return self.provider, model


class FailingChecker(SchemaChecker):
    """Checks of arguments that end with an error."""

    async def argument_problem(
        self, tenant: str, tool: ToolDefinition, arguments: JsonObject
    ) -> ArgumentProblem | None:
        raise ValueError("not foreseen")


async def not_encodable(_deltas: DeltaSink) -> ModelReply:
    return ModelReply("Hello.", usage=USAGE, provider_state={"state": "\ud800"})


async def with_call(_deltas: DeltaSink) -> ModelReply:
    return ModelReply(None, (LOOK,), "tool_calls", usage=USAGE)


async def not_readable(deltas: DeltaSink) -> ModelReply:
    await deltas.write("message", "Half of a text. " * 10)
    raise ValueError("not foreseen")


def with_adapter(agent: Agent, adapter: Adapter, **changes: Any) -> Agent:
    step = replace(agent.worker.model_step, providers=OneProvider(adapter), **changes)
    return replace(agent, worker=replace(agent.worker, model_step=step))


@pytest.mark.parametrize(
    ("write", "changes"),
    [(not_encodable, {}), (with_call, {"schemas": FailingChecker()})],
    ids=["the commit cannot be encoded", "a check raises"],
)
async def test_an_unforeseen_error_of_a_reply_ends_the_run_with_its_usage(
    agent: Agent, write: Write, changes: dict[str, Any]
) -> None:
    adapter = Adapter(write)

    outcome = await with_adapter(agent, adapter, **changes).run("go", "openai:x")

    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("failed", "internal")
    assert adapter.requests == 1
    assert [one.usage.input_tokens for one in await agent.events(MessageCompleted)] == [700]
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (700, 30)


async def test_an_unforeseen_error_while_a_reply_is_read_records_the_text_and_its_estimated_usage(
    agent: Agent,
) -> None:
    adapter = Adapter(not_readable)

    outcome = await with_adapter(agent, adapter).run("go", "openai:x")

    (message,) = await agent.events(MessageCompleted)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("failed", "internal")
    assert adapter.requests == 1
    assert message.partial and message.content == "Half of a text. " * 10
    assert outcome.usage.output_tokens == message.usage.output_tokens > 0
