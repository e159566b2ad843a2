"""Backboard, which stores assistants and threads itself and requests the outputs of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import structlog

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers import backboard_request
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.retrying import RetryingProvider
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.wire import JsonObject

if TYPE_CHECKING:
    from banksman.agent.providers.backboard_api import BackboardApi
from banksman.agent.providers.collect import ReplyBuilder, as_tokens
from banksman.agent.providers.untyped import as_list, as_object, as_text, well_formed
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage

_THREAD_REFUSED = frozenset({400, 404, 409, 410, 422})
"""Statuses that may mean that a thread was deleted, or that its run does not wait for outputs."""

_NOT_FOUND = 404

_log = structlog.get_logger(__name__)


class Backboard(RetryingProvider["BackboardApi"]):
    """The `Provider` of every model behind Backboard.

    Model names are `vendor/model`. The API has no parameters for the options of a request, so they are
    ignored. Images become placeholders.
    """

    def make_client(self) -> BackboardApi:
        from banksman.agent.providers.backboard_api import BackboardApi

        return BackboardApi(self.name, self.settings, self.entry)

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """Later attempts use the assistant that an earlier one created."""
        return _Attempts(self.client, self.name, instructed(request), deltas).attempt


class _Attempts:
    def __init__(self, api: BackboardApi, provider: str, request: ModelRequest, deltas: DeltaSink) -> None:
        self._api = api
        self._request = request
        self._deltas = deltas
        self._plan: backboard_request.Plan = backboard_request.plan(request, provider)
        self._configuration = backboard_request.configuration(request)
        known = backboard_request.known_assistant(request, provider)
        self._assistant_id = known.assistant_id if known else None
        self._configured = known.configured if known else ""

    async def attempt(self) -> ModelReply:
        """Execute the plan. If the thread refuses to continue, start a new one."""
        try:
            return await self._execute(await self._current_plan())
        except (ProviderFailed, TransientFault) as fault:
            if isinstance(self._plan, backboard_request.Begin):
                raise
            if fault.status not in _THREAD_REFUSED:
                self._abandon_uncertain_run(fault)
                raise
            _log.warning("the thread does not continue, starting a new one", error=str(fault))
        self._plan = backboard_request.begin(self._request)
        return await self._execute(self._plan)

    def _abandon_uncertain_run(self, fault: ProviderFailed | TransientFault) -> None:
        """Plan a new thread if the vendor may already have the outputs: the API does not report outputs."""
        if isinstance(self._plan, backboard_request.Submit) and fault.status is None:
            self._plan = backboard_request.begin(self._request)

    async def _current_plan(self) -> backboard_request.Plan:
        """Return the plan; it starts a new thread if the planned one already has the messages.

        An interrupted attempt, an agent that crashed before it stored the reply, or a cancelled run may have
        sent them. The log does not contain messages that the thread has received since then.
        """
        if isinstance(self._plan, backboard_request.Continue):
            present = await self._api.message_ids(self._plan.thread_id)
            if not present.isdisjoint(self._plan.message_ids):
                self._plan = backboard_request.begin(self._request)
        return self._plan

    async def _execute(self, chosen: backboard_request.Plan) -> ModelReply:
        assistant_id = await self._assistant()
        match chosen:
            case backboard_request.Continue(thread_id, text, message_ids):
                events = self._api.send_message(thread_id, text, message_ids, self._request.model)
            case backboard_request.Submit(thread_id, run_id, outputs):
                events = self._api.submit(thread_id, run_id, outputs)
            case backboard_request.Begin(text):
                thread_id = await self._api.create_thread(assistant_id)
                events = self._api.send_message(thread_id, text, (), self._request.model)
            case _:
                assert_never(chosen)
        return await self._read(events, assistant_id, thread_id)

    async def _assistant(self) -> str:
        """Return the conversation's assistant, updated to the request's prompt and tools (R56, R58)."""
        if self._assistant_id is not None and self._configured != self._configuration:
            await self._update(self._assistant_id)
        if self._assistant_id is None:
            name = f"Banksman {self._request.conversation_id}".strip()
            self._assistant_id = await self._api.create_assistant(
                name, self._request.system, backboard_request.tools(self._request)
            )
        self._configured = self._configuration
        return self._assistant_id

    async def _update(self, assistant_id: str) -> None:
        try:
            await self._api.update_assistant(
                assistant_id, self._request.system, backboard_request.tools(self._request)
            )
        except ProviderFailed as refusal:
            if refusal.status != _NOT_FOUND:
                raise
            self._assistant_id = None

    async def _read(
        self, events: AsyncGenerator[JsonObject], assistant_id: str, thread_id: str
    ) -> ModelReply:
        reader = BackboardReplyReader(self._deltas)
        async with aclosing(events):
            async for event in events:
                await reader.take(event)
                if reader.done:
                    break
        if reader.cut:
            return reader.reply()
        state = backboard_request.ThreadState(
            assistant_id=assistant_id,
            configured=self._configuration,
            thread_id=thread_id,
            run_id=reader.run_id,
            model=self._request.model,
            history=backboard_request.history_digest(self._request.messages),
        )
        return replace(reader.reply(), provider_state=state.model_dump())


class BackboardReplyReader:
    """Reads events until the run ends or waits for outputs. Unknown events are ignored."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason: FinishReason | None = None
        self._raw_finish_reason = ""
        self._usage = Usage()
        self.run_id: str | None = None
        """Id of the run that waits for outputs; None if no run waits."""

    @property
    def done(self) -> bool:
        return self._finish_reason is not None or self._builder.full

    @property
    def cut(self) -> bool:
        """True if the thread contains more of the reply than was read."""
        return self._builder.full

    async def take(self, event: JsonObject) -> None:
        match event.get("type"):
            case "content_streaming":
                await self._builder.add_text(as_text(event.get("content")))
            case "reasoning_streaming":
                await self._builder.add_reasoning(as_text(event.get("content")))
            case "tool_submit_required":
                self._take_calls(event)
                self._end("tool_calls", event)
            case "run_ended":
                self._end("stop", event)
            case _:
                pass

    def reply(self) -> ModelReply:
        """Return the reply without state; raise `TransientFault` if the stream ended before the run."""
        if not self.done:
            raise TransientFault("the stream ended before the run")
        return self._builder.reply(self._finish_reason or "length", self._raw_finish_reason, self._usage)

    def _take_calls(self, event: JsonObject) -> None:
        self.run_id = well_formed(as_text(event.get("run_id"))) or None
        for index, call in enumerate(as_list(event.get("tool_calls"))):
            self._builder.add_function_call(as_object(call), index)

    def _end(self, reason: FinishReason, event: JsonObject) -> None:
        self._finish_reason = reason
        self._raw_finish_reason = as_text(event.get("status")) or as_text(event.get("type"))
        input_tokens = as_tokens(event.get("input_tokens"))
        self._usage = Usage(
            input_tokens=input_tokens,
            output_tokens=as_tokens(event.get("output_tokens")),
            cached_tokens=min(input_tokens, as_tokens(event.get("cached_input_tokens"))),
        )
