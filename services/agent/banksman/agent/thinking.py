"""One model request: from the folded log to a reply, with its text streamed while it is written."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from banksman.agent.catalog import ToolCatalog
from banksman.agent.compactor import Compactor
from banksman.agent.fallback import Answered, first_answer
from banksman.agent.pricing import cost
from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    Calls,
    DeltaFilter,
    Final,
    ModelRequest,
    Protocol,
    truncated_text,
)
from banksman.agent.providers.base import DeltaKind
from banksman.agent.providers.catalog import Providers
from banksman.agent.replies import Reply, ended, failure, recorded
from banksman.agent.settings import AgentSettings
from banksman.agent.tenants import Tenants
from banksman.agent.waiting import unless_cancelled
from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import PROMPTS
from banksman.contracts import subjects
from banksman.contracts.calls import Delta, FileRead
from banksman.contracts.errors import BanksmanError, NotFound, ProviderFailed, Refused, Unavailable
from banksman.contracts.events import EventBody
from banksman.contracts.messages import text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.tools import ToolDefinition
from banksman.prompting.builtin import DEFAULT_PROMPT
from banksman.prompting.enhance import enhance
from banksman.prompting.relevance import needs_of
from banksman.prompting.templates import render, run_variables
from banksman.runs.owner import Build, Ownership
from banksman.runs.placement import Placements
from banksman.runs.state import Conversation, Run
from banksman.runs.steps import deadline_of
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

MAX_DIFF_BYTES = 100_000
"""Bytes of an existing file that are read to show what a write would change."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request that can be sent."""

    protocol: Protocol
    request: ModelRequest
    tools: tuple[ToolDefinition, ...]
    """Those offered, also where the protocol tells of them in the prompt."""
    dropped: frozenset[str]
    """Names of those that were left out to keep to the budget."""


@dataclass(frozen=True, slots=True)
class Thinker:
    """Asks models. Everything it needs is given; one serves all runs of a process."""

    bus: Bus
    providers: Providers
    catalog: ToolCatalog
    placements: Placements
    compactor: Compactor
    settings: AgentSettings
    tenants: Tenants

    async def think(self, owned: Ownership) -> Build:
        """Ask the model of a run once; what its outcome becomes in the log.

        Raises:
            Fenced: a higher claim owns the run.
            Refused: the broker did not answer; that is no reason to end the run.
        """
        ending = await self.tenants.used_up(owned)
        if ending is not None:
            return lambda state: ended(state, ending)
        try:
            prepared = await self._prepared(owned.state, owned.run)
            room = await self.compactor.before(owned, prepared.request)
            return room or await self._outcome(owned, prepared)
        except Refused:
            raise
        except BanksmanError as error:
            logger.warning("the model could not be asked: %s", error, extra={"run_id": owned.run.run_id})
            return _failed(owned, error)

    async def _outcome(self, owned: Ownership, prepared: _Prepared) -> Build:
        try:
            reply = await self._reply(owned, prepared)
        except ProviderFailed as refusal:
            room = await self.compactor.after_refusal(owned, prepared.request, refusal)
            if room is None:
                raise
            return room
        return _nothing if reply is None else lambda state: recorded(state, reply)

    async def _reply(self, owned: Ownership, prepared: _Prepared) -> Reply | None:
        """The reply; None when the run was cancelled meanwhile.

        Raises:
            ProviderFailed: the model's API failed for good, or the run's time is over.
            BadInput: a model is not known.
        """
        run, protocol = owned.run, prepared.protocol
        logger.info("asking the model", extra={"run_id": run.run_id, "iteration": run.iteration})
        message_id = owned.ports.clock.new_id("m")
        deltas = _Deltas(self.bus, owned.state, run, message_id, protocol)
        left_s = (deadline_of(run) - owned.ports.clock.now()).total_seconds()
        asked = first_answer(
            self.providers,
            (run.settings.model, *run.settings.fallback_models),
            prepared.request,
            deltas=deltas,
            deadline_s=left_s,
        )
        answered = await unless_cancelled(owned, asked)
        if answered is None:
            return None
        await reach("agent.reply_received")
        written = answered.reply
        reading = protocol.read(written, attempt=run.malformed + 1)
        if isinstance(reading, Final):
            await deltas.flush()
        calls = reading.calls if isinstance(reading, Calls) else ()
        return Reply(
            reading=reading,
            text=truncated_text(written.text or ""),
            message_id=message_id,
            approval_id=owned.ports.clock.new_id("a"),
            expires_at=owned.ports.clock.now() + timedelta(seconds=self.settings.approval_expiry_s),
            call_ids=tuple(owned.ports.clock.new_id("k") for _ in calls),
            usage=written.usage.model_copy(update={"cost_usd": self._cost(answered)}),
            model=answered.model,
            provider=answered.provider,
            provider_state=written.provider_state,
            tools=self._tools(owned.state, run, prepared),
            old_contents=await self._old_contents(owned.state, reading),
        )

    def _tools(self, state: Conversation, run: Run, prepared: _Prepared) -> dict[str, ToolDefinition]:
        """What the model may call, by name: also what was not offered because its server restarts."""
        returning = self.catalog.returning(state.tenant, run.settings.tools)
        kept = (tool for tool in returning if tool.name not in prepared.dropped)
        return {tool.name: tool for tool in (*kept, *prepared.tools)}

    async def _prepared(self, state: Conversation, run: Run) -> _Prepared:
        """The request, before it is sent.

        Raises:
            BadInput: a variable of the prompt is not known.
            NotFound: the system prompt is gone.
        """
        settings = run.settings
        tools = self.catalog.offered(state.tenant, settings.tools, state.history)
        variables = run_variables(
            service=settings.service, user_message=text_of(run.message.content), variables=settings.variables
        )
        base = render(await self._base_prompt(state.tenant, run), variables)
        prompt = enhance(
            base,
            tools,
            settings.tool_protocol,
            budget_tokens=self.settings.prompt_budget_tokens,
            max_tools=self.settings.max_offered_tools,
            needs=needs_of(state.history, run.message.message_id, settings.tools.always_offered),
        )
        if prompt.dropped:
            logger.warning(
                "tools left out of the prompt", extra={"run_id": run.run_id, "tools": prompt.dropped}
            )
        request = ModelRequest(
            settings.model,
            prompt.text,
            state.history,
            prompt.tools,
            settings.options,
            state.conversation_id,
        )
        protocol = protocol_for(settings.tool_protocol)
        return _Prepared(protocol, protocol.prepare(request), prompt.tools, frozenset(prompt.dropped))

    async def _base_prompt(self, tenant: str, run: Run) -> str:
        prompt_id = run.settings.system_prompt_id
        if prompt_id is None:
            return run.settings.system_prompt if run.settings.system_prompt is not None else DEFAULT_PROMPT
        entry = await Bucket(self.bus, PROMPTS, SystemPrompt).get(f"{tenant}.{prompt_id}")
        if entry is None:
            raise NotFound("system prompt", prompt_id)
        return entry.value.content

    def _cost(self, answered: Answered) -> float | None:
        return cost(answered.model, answered.reply.usage, self.settings.prices)

    async def _old_contents(self, state: Conversation, reading: object) -> dict[str, str]:
        """What the files hold that would be written, as far as they can be read: for a person to compare."""
        calls = reading.calls if isinstance(reading, Calls) else ()
        found: dict[str, str] = {}
        for call in calls:
            path = (call.arguments or {}).get("path")
            if call.name == "write_file" and isinstance(path, str) and path not in found:
                text = await self._old_content(state, path)
                found |= {} if text is None else {path: text}
        return found

    async def _old_content(self, state: Conversation, path: str) -> str | None:
        request = FileRead(path=path[:4096], max_bytes=MAX_DIFF_BYTES)
        try:
            answer = await self.placements.files(state.tenant, state.conversation_id, request)
        except BanksmanError:
            return None
        return answer.text


def _nothing(_state: Conversation) -> tuple[EventBody, ...]:
    return ()


def _failed(owned: Ownership, error: BanksmanError) -> Build:
    def build(state: Conversation) -> tuple[EventBody, ...]:
        over = state.run is not None and owned.ports.clock.now() >= deadline_of(state.run)
        return () if over else failure(state, error)

    return build


class _Deltas:
    """Publishes the text of a reply while it is written, and nothing of a call."""

    def __init__(self, bus: Bus, state: Conversation, run: Run, message_id: str, protocol: Protocol) -> None:
        self._bus = bus
        self._protocol = protocol
        self._filter: DeltaFilter = protocol.delta_filter()
        self._subject = subjects.delta(state.tenant, state.conversation_id)
        self._next = Delta(
            conversation_id=state.conversation_id, run_id=run.run_id, message_id=message_id, offset=0, text=""
        )
        self._offsets: dict[DeltaKind, int] = {"message": 0, "reasoning": 0}

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Take the next piece."""
        await self._publish(kind, self._filter.feed(text) if kind == "message" else text)

    async def restart(self) -> None:
        """Begin the reply anew: pieces with small offsets replace what was shown."""
        self._filter = self._protocol.delta_filter()
        self._offsets = {"message": 0, "reasoning": 0}

    async def flush(self) -> None:
        """Publish what was held back: the reply turned out to be text."""
        await self._publish("message", self._filter.flush())

    async def _publish(self, kind: DeltaKind, text: str) -> None:
        if not text:
            return
        delta = self._next.model_copy(update={"kind": kind, "offset": self._offsets[kind], "text": text})
        self._offsets[kind] += len(text)
        # Whoever misses a piece gets the whole message from the log.
        with contextlib.suppress(Unavailable):
            await self._bus.publish(self._subject, delta.model_dump_json().encode())
