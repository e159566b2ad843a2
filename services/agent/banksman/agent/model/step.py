"""One model request: it prepares the request from the folded log, streams the reply and checks it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from textwrap import shorten

from structlog.contextvars import bound_contextvars

from banksman.agent.model import replies
from banksman.agent.model.checks import (
    CallFacts,
    CutPrompts,
    TenantBudgets,
    argument_problems,
    old_contents,
    structured,
)
from banksman.agent.model.compaction import Compactor
from banksman.agent.model.context import BYTES_PER_TOKEN, size_of
from banksman.agent.model.files import WorkspaceFiles
from banksman.agent.model.replies import PaidReply, PartialReply, ReplyCommit, UnusableReply
from banksman.agent.model.request import (
    Completion,
    Deltas,
    UnfinishedTexts,
    complete_with_fallback,
    empty_delta,
    unless_cancelled,
)
from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    Final,
    Malformed,
    ModelReply,
    ModelRequest,
    Protocol,
    RequestedCall,
    RequestedCalls,
    truncated_text,
)
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.images import with_result_images
from banksman.agent.settings import AgentSettings
from banksman.agent.tools import AvailableTools
from banksman.bus.connection import Bus
from banksman.bus.names import PROMPTS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import BanksmanError, EmptyReply, NotFound, ProviderFailed, Refused
from banksman.contracts.events import ModelNotice
from banksman.contracts.ids import approval_id_for
from banksman.contracts.messages import Usage, UserMessage, text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.tools import ToolDefinition
from banksman.prompting.enhance import EnhancedPrompt, enhance, needs_of
from banksman.prompting.templates import DEFAULT_PROMPT, NUDGE, USER_INSTRUCTIONS, render, run_variables
from banksman.runs.conversation_log import OUTPUT_CHARS
from banksman.runs.history import without_old_corrections
from banksman.runs.outcome import Ending
from banksman.runs.owner import Build, Ownership
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runs.state import Conversation, Run
from banksman.runs.steps import MAX_MALFORMED, deadline_of
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

MAX_NAMES_CHARS = 250
"""Maximum characters of the names of tools in a notice."""


NUDGED = ModelNotice(kind="nudged", text="The model's reply was empty, so it was requested again.")


@dataclass(frozen=True, slots=True)
class _Prepared:
    protocol: Protocol
    request: ModelRequest
    tools: tuple[ToolDefinition, ...]
    """The offered tools, including those that the protocol writes into the prompt."""
    dropped: frozenset[str]
    """Names of the tools that exceed the budget of the prompt."""
    notices: tuple[ModelNotice, ...] = ()
    """What the user should know about the request; empty after the first reply of a run."""


@dataclass(frozen=True, slots=True)
class _Written:
    reply: ModelReply
    paid: PaidReply


@dataclass(frozen=True, slots=True)
class ModelStep:
    bus: Bus
    providers: Providers
    catalog: AvailableTools
    placements: Placements
    compactor: Compactor
    settings: AgentSettings
    tenants: TenantBudgets
    schemas: SchemaChecker
    files: WorkspaceFiles
    cut_prompts: CutPrompts = field(default_factory=CutPrompts)
    texts: UnfinishedTexts = field(default_factory=UnfinishedTexts)

    async def complete(self, owned: Ownership) -> Build:
        """Request the next reply of a run; return the `Build` of its commit.

        If the history is too long for the model, the commit is a compaction, and the loop requests the reply
        in its next step. An error of the broker is no reason to end the run.
        """
        with bound_contextvars(run_id=owned.run.run_id):
            return await self._next(owned)

    async def _next(self, owned: Ownership) -> Build:
        await owned.confirm()
        ending = await self.tenants.used_up(owned)
        if ending is not None:
            return partial(replies.end_events, ending=ending)
        try:
            prepared = await self._prepare(owned.state, owned.run)
            if owned.run.settings.compact:
                return await self.compactor.now(owned, prepared.request)
            compaction = await self.compactor.before(owned, prepared.request)
            return compaction or await self._complete(owned, prepared)
        except Refused:
            raise
        except BanksmanError as error:
            logger.warning("the model request failed: %s", error, extra={"run_id": owned.run.run_id})
            return partial(replies.failure, owned, error, None)

    def unrecorded(self, error: Exception, reply: Build) -> tuple[Ending, Build] | None:
        return replies.unrecorded(error, reply)

    async def _complete(self, owned: Ownership, prepared: _Prepared) -> Build:
        state = owned.state
        with (
            Deltas(self.bus, state.tenant, empty_delta(owned), prepared.protocol, owned.confirm) as deltas,
            self.texts.writing(state.tenant, state.conversation_id, deltas),
        ):
            try:
                reply = await self._reply(owned, prepared, deltas)
            except ProviderFailed as refusal:
                compaction = await self.compactor.after_refusal(owned, prepared.request, refusal)
                if compaction is not None:
                    return compaction
                if not deltas.streamed:
                    raise
                logger.warning("the model request failed: %s", refusal, extra={"run_id": owned.run.run_id})
                return partial(replies.failure, owned, refusal, await self._partial(owned, prepared, deltas))
            if reply is None:
                return partial(replies.partial_events, reply=await self._partial(owned, prepared, deltas))
            return reply

    async def _partial(self, owned: Ownership, prepared: _Prepared, deltas: Deltas) -> PartialReply:
        """Return the streamed text of an interrupted reply, which clients show, with its estimated usage."""
        await deltas.end(is_final=False)
        text, model = deltas.streamed, owned.run.settings.model
        read = size_of(prepared.request, owned.state.history, owned.state.measured).total
        usage = Usage(input_tokens=read, output_tokens=len(text.encode()) // BYTES_PER_TOKEN)
        paid = PaidReply(deltas.message_id, model, "", self.settings.priced(model, usage), deltas.reasoning)
        return PartialReply(truncated_text(text), paid)

    async def _reply(self, owned: Ownership, prepared: _Prepared, deltas: Deltas) -> Build | None:
        """Request and check the reply, an empty one again; return None if the run was cancelled."""
        completion = await self._request(owned, prepared, prepared.request, deltas)
        if completion is None:
            return None
        written = _Written(completion.reply, self._paid(deltas, completion))
        if written.reply.is_empty:
            second = await self._nudged(owned, prepared, deltas, written.paid)
            if not isinstance(second, _Written):
                return second
            written = second
        try:
            return await self._checked(owned, prepared, deltas, written.reply, written.paid)
        except ValueError as error:
            raise UnusableReply(partial(replies.paid_events, reply=written.paid)) from error

    async def _nudged(
        self, owned: Ownership, prepared: _Prepared, deltas: Deltas, paid: PaidReply
    ) -> _Written | Build:
        """Request an empty reply again; return a `Build` if the run was cancelled or fails."""
        logger.warning("the model's reply is empty", extra={"run_id": owned.run.run_id, "model": paid.model})
        nudge = UserMessage(message_id=deltas.message_id, content=NUDGE)
        request = replace(prepared.request, messages=(*prepared.request.messages, nudge))
        try:
            await deltas.restart()
            completion = await self._request(owned, prepared, request, deltas)
        except ProviderFailed as error:
            streamed = PartialReply(truncated_text(deltas.streamed), paid, charged=True)
            return partial(replies.failure, owned, error, streamed)
        if completion is None:
            return partial(replies.paid_events, reply=paid)
        second = self._paid(deltas, completion)
        second = replace(second, usage=paid.usage + second.usage)
        reply = completion.reply
        if reply.is_empty:
            error = EmptyReply(completion.model, "the model replied twice without text and without a call")
            return partial(replies.failure, owned, error, PartialReply("", second, charged=True))
        return _Written(replace(reply, notices=(NUDGED, *reply.notices)), second)

    def _paid(self, deltas: Deltas, completion: Completion) -> PaidReply:
        usage = self.settings.priced(completion.model, completion.reply.usage)
        return PaidReply(deltas.message_id, completion.model, completion.provider, usage, deltas.reasoning)

    async def _request(
        self, owned: Ownership, prepared: _Prepared, request: ModelRequest, deltas: Deltas
    ) -> Completion | None:
        """Send a request; return None if the run was cancelled meanwhile."""
        run, now = owned.run, owned.ports.clock.now()
        logger.debug("requesting the model", extra={"run_id": run.run_id, "iteration": run.iteration})
        sending = complete_with_fallback(
            self.providers,
            owned.state.tenant,
            (run.settings.model, *run.settings.fallback_models),
            request,
            deltas=deltas,
            deadline_s=(deadline_of(run) - now).total_seconds(),
            waited_s=(now - (run.asked_at or now)).total_seconds(),
        )
        await owned.confirm()
        try:
            completion = await unless_cancelled(owned, sending)
        except ValueError as error:
            streamed = await self._partial(owned, prepared, deltas)
            raise UnusableReply(partial(replies.partial_events, reply=streamed)) from error
        if completion is not None:
            await reach("agent.reply_received")
        return completion

    async def _checked(
        self, owned: Ownership, prepared: _Prepared, deltas: Deltas, written: ModelReply, paid: PaidReply
    ) -> ReplyCommit:
        run, clock = owned.run, owned.ports.clock
        attempt = run.malformed + 1
        reading = prepared.protocol.read(written, attempt=attempt, tools=prepared.tools)
        schema = run.settings.options.response_schema
        if isinstance(reading, Final) and schema is not None:
            reading = await structured(self.schemas, owned.state.tenant, schema, reading, attempt)
        if isinstance(reading, Malformed) and attempt > MAX_MALFORMED:
            # The log of a correction has the same lines; this reply gets none.
            extra = {"run_id": run.run_id, "iteration": run.iteration, "attempt": attempt}
            logger.warning("the model's call could not be read", extra={**extra, "error": reading.error})
            logger.debug("the model wrote", extra={**extra, "text": (written.text or "")[:OUTPUT_CHARS]})
        await deltas.end(is_final=isinstance(reading, Final))
        calls, read_notices = (
            (reading.calls, reading.notices) if isinstance(reading, RequestedCalls) else ((), ())
        )
        cut = self.cut_prompts.notices(paid.model, prepared.request, written.usage)
        call_ids = tuple(clock.new_id("k") for _ in calls)
        now = clock.now()
        return ReplyCommit(
            reading=reading,
            text=truncated_text(written.text or ""),
            paid=paid,
            provider_state=written.provider_state,
            call_ids=call_ids,
            facts=await self._facts(owned, prepared, calls, call_ids),
            approval_id=approval_id_for(run.run_id),
            requested_at=now,
            expires_at=now + timedelta(seconds=self.settings.approval_expiry_s),
            notices=replies.shown_notices(
                run.run_id, (*prepared.notices, *written.notices, *read_notices, *cut)
            ),
        )

    async def _facts(
        self,
        owned: Ownership,
        prepared: _Prepared,
        calls: tuple[RequestedCall, ...],
        call_ids: tuple[str, ...],
    ) -> CallFacts:
        tenant, settings = owned.state.tenant, owned.run.settings
        executed = calls[: settings.limits.calls_per_reply]
        # Also the tools of a server that is restarting may be called.
        returning = self.catalog.returning(tenant, settings.tools)
        kept = (tool for tool in returning if tool.name not in prepared.dropped)
        tools = {tool.name: tool for tool in (*kept, *prepared.tools)}
        return CallFacts(
            tools=tools,
            problems=await argument_problems(self.schemas, tenant, executed, call_ids, tools),
            old_contents=await old_contents(self.placements, owned.state, executed),
            approvals_full=await self._approvals_full(tenant, executed),
        )

    async def _approvals_full(self, tenant: str, calls: tuple[RequestedCall, ...]) -> str | None:
        size = sum(len(json.dumps(call.arguments)) for call in calls)
        return await self.tenants.approvals.problem(tenant, size) if calls else None

    async def _prepare(self, state: Conversation, run: Run) -> _Prepared:
        settings = run.settings
        tools = self.catalog.offered(state.tenant, settings.tools, state.history)
        variables = run_variables(
            service=settings.service, user_message=text_of(run.message.content), variables=settings.variables
        )
        base = render(await self._base_prompt(state.tenant, run), variables)
        if settings.instructions:
            base = f"{base.strip()}\n\n{USER_INSTRUCTIONS}\n\n{settings.instructions}"
        prompt = enhance(
            base,
            tools,
            settings.tool_protocol,
            budget_tokens=self.settings.prompt_budget_tokens,
            max_tools=self.settings.max_offered_tools,
            needs=needs_of(state.history, run.message.message_id, settings.tools.always_offered),
        )
        request = ModelRequest(
            settings.model,
            prompt.text,
            with_result_images(without_old_corrections(state.history, run.message.message_id)),
            prompt.tools,
            settings.options,
            state.conversation_id,
            partial(self.files.load, state.tenant, state.conversation_id),
        )
        # Without tools a reply is text, also one that shows how a call is written (R82, R86).
        callable_tools = tools or self.catalog.returning(state.tenant, settings.tools)
        protocol = protocol_for(settings.tool_protocol if callable_tools else "native")
        # The offer changes hardly during a run, so one notice suffices.
        is_first = run.iteration == 1 and not run.malformed
        notices = (self._left_out(prompt),) if prompt.dropped and is_first else ()
        dropped = frozenset(prompt.dropped)
        return _Prepared(protocol, protocol.prepare(request), prompt.tools, dropped, notices)

    def _left_out(self, prompt: EnhancedPrompt) -> ModelNotice:
        names = shorten(", ".join(prompt.dropped), MAX_NAMES_CHARS, placeholder=" …")
        offered, most = len(prompt.tools), self.settings.max_offered_tools
        text = (
            f"The model is offered {offered} of {offered + len(prompt.dropped)} tools, because a request has "
            f"room for {most}, with descriptions of {self.settings.prompt_budget_tokens} tokens. "
            f"A tool that a message names is offered. Left out: {names}"
        )
        return ModelNotice(kind="tool_left_out", text=text)

    async def _base_prompt(self, tenant: str, run: Run) -> str:
        prompt_id = run.settings.system_prompt_id
        if prompt_id is None:
            return run.settings.system_prompt if run.settings.system_prompt is not None else DEFAULT_PROMPT
        entry = await Bucket(self.bus, PROMPTS, SystemPrompt).get(f"{tenant}.{prompt_id}")
        if entry is None:
            raise NotFound("system prompt", prompt_id)
        return entry.value.content
