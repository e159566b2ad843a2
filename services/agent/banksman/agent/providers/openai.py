"""OpenAI's Chat Completions API and compatible servers: the provider and its replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers import responses
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.collect import ReplyBuilder, as_tokens, merge_state
from banksman.agent.providers.exchanges import CALLS_FIELD
from banksman.agent.providers.facts import Facts, ServerFacts
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.openai_request import body
from banksman.agent.providers.profiles import Profile
from banksman.agent.providers.refusals import MAX_REMEMBERED_MODELS
from banksman.agent.providers.retrying import RetryingProvider
from banksman.agent.providers.state import MAX_STATE_CHARS
from banksman.agent.providers.streams import END_FIELD
from banksman.agent.providers.untyped import as_list, as_object, as_text
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject
from banksman.runtime.model_servers import ProviderEntry

if TYPE_CHECKING:
    from banksman.agent.providers.openai_api import OpenAIApi

logger = logging.getLogger(__name__)

CHAT_PATH = "chat/completions"
_REST_S = 5.0
"""Seconds to wait for the usage after a finish reason, if the server does not end the stream."""
# DeepSeek and others stream reasoning in the first of these fields, Ollama and vLLM in the second, GitHub
# Copilot in the third.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
_NO_REASONS = ("", "null")
_THOUGHTS = ("thinking", "reasoning")
"""The types of parts with reasoning, of Mistral and Databricks."""
_PLAIN_FIELDS = frozenset({"role", "content"})
"""The fields of most pieces of a reply, which are not searched for anything else."""
_DETAIL_BLOCK = ("type", "index", "format")
_DETAILS = ("reasoning_details", "thinking_blocks")
"""Signed reasoning of OpenRouter and of LiteLLM, in blocks: https://openrouter.ai/docs/use-cases/reasoning-tokens
and https://docs.litellm.ai/docs/reasoning_content"""
_DETAIL_TEXTS = ("text", "summary", "thinking")
_HITS_FIELD = "prompt_cache_hit_tokens"


class OpenAI(RetryingProvider["OpenAIApi"]):
    """The `Provider` of one address that serves the Chat Completions API, the Responses API or both."""

    def __init__(self, name: str, settings: ProviderSettings, entry: ProviderEntry) -> None:
        super().__init__(name, settings, entry)
        self._on_responses: dict[str, None] = {}
        """Models that the Chat Completions API refused, the newest last."""
        self._facts = ServerFacts(entry.base_url, lambda url, body: self.client.fetch(url, body))

    def facts(self, model: str) -> Facts:
        return self._facts.known(model, self.profile(model).facts)

    async def close(self) -> None:
        await self._facts.close()
        await super().close()

    def make_client(self) -> OpenAIApi:
        from banksman.agent.providers.openai_api import OpenAIApi

        return OpenAIApi(self.name, self.settings, self.entry)

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        """Send the request to the API that serves the model.

        A request that is refused because its model needs the Responses API is repeated there, as are later
        ones. A history with replies of that API begins there, also after a restart of this process.
        """
        model, profile = request.model, self.profile(request.model)
        chosen = "responses" in (self.entry.api, profile.api) or model in self._on_responses
        if chosen or responses.wrote(request.messages):
            return await self._respond(request, profile, deltas)
        try:
            sent = body(request, self.name, profile)
            return await self._stream(CHAT_PATH, sent, model, OpenAIReplyReader(deltas, profile))
        except ProviderFailed as refusal:
            if refusal.status not in (400, 404) or "/responses" not in refusal.message:
                raise
            reason = self.redaction.of(str(refusal))
            logger.warning("using the Responses API: %s", reason, extra={"model": model})
        self._on_responses[model] = None
        if len(self._on_responses) > MAX_REMEMBERED_MODELS:
            del self._on_responses[next(iter(self._on_responses))]
        return await self._respond(request, profile, deltas)

    async def _respond(self, request: ModelRequest, profile: Profile, deltas: DeltaSink) -> ModelReply:
        sent = responses.body(request, profile)
        return await self._stream(responses.PATH, sent, request.model, responses.ResponsesReader(deltas))

    async def _stream(
        self,
        path: str,
        sent: dict[str, Any],
        model: str,
        reader: OpenAIReplyReader | responses.ResponsesReader,
    ) -> ModelReply:
        """Return the reply to a request. After its finish reason, neither silence nor an error counts."""
        chunks = self.client.chunks(path, sent, self.silence_s(model))
        try:
            async with asyncio.timeout(None) as rest, aclosing(chunks):
                async for chunk in chunks:
                    await reader.take(chunk)
                    if reader.full:
                        break
                    if reader.ended and rest.when() is None:
                        rest.reschedule(asyncio.get_running_loop().time() + _REST_S)
        except (TimeoutError, TransientFault) as error:
            if not reader.ended:
                raise (self.silent(model) if isinstance(error, TimeoutError) else error) from error
        return reader.reply()


class OpenAIReplyReader:
    """Reads the chunks of one streamed reply. Compatible servers may omit any field or set it to null."""

    def __init__(self, deltas: DeltaSink, profile: Profile) -> None:
        self._builder = ReplyBuilder(deltas)
        self._profile = profile
        self._finish_reason = ""
        self._ended = False
        """True after the event that ends a stream."""
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""
        self._details: dict[str, list[JsonObject]] = {name: [] for name in _DETAILS}
        self._details_chars = 0
        self._extra: JsonObject = {}

    @property
    def full(self) -> bool:
        return self._builder.full

    @property
    def ended(self) -> bool:
        """True after the finish reason; only the usage may follow."""
        return bool(self._finish_reason)

    async def take(self, fields: dict[str, Any]) -> None:
        self._ended = END_FIELD in fields
        of_groq = as_object(fields.get("x_groq")).get("usage")
        self._usage = as_object(fields.get("usage")) or as_object(of_groq) or self._usage
        for choice in map(as_object, as_list(fields.get("choices"))):
            self._usage = as_object(choice.get("usage")) or self._usage
            reason = as_text(choice.get("finish_reason"))
            self._finish_reason = self._finish_reason if reason in _NO_REASONS else reason
            delta = as_object(choice.get("delta"))
            if not delta and self._builder.is_empty:
                # Some servers reply with the whole message instead of a stream; others repeat it at the end.
                delta = as_object(choice.get("message"))
            await self._take_delta(delta)

    def reply(self) -> ModelReply:
        """Return the reply; raise `TransientFault` if the stream ended before the reply was complete."""
        reason = self._finish_reason
        if not reason and self._ended and self._builder.has_complete_calls:
            reason = "tool_calls"
        if not reason and not self.full:
            raise TransientFault("the stream ended without a finish reason")
        if reason.lower() in self._profile.failed_reasons and not self._builder.has_complete_calls:
            raise TransientFault(f"the model's server broke the reply off: {reason}")
        known = self._profile.finish_reasons.get(reason.partition(":")[0].strip().lower(), "unknown")
        if known == "stop" and self._builder.has_complete_calls:
            known = "tool_calls"
        return self._builder.reply(known, reason, _usage(self._usage), self._state())

    def _state(self) -> JsonObject:
        """Return the fields to send back with the message, and those of its calls under `CALLS_FIELD`."""
        state: JsonObject = dict(self._extra)
        details: JsonObject = {name: [*found] for name, found in self._details.items() if found}
        if self._reasoning_field and not details:
            state[self._reasoning_field] = self._builder.reasoning
        state |= details
        if calls := self._builder.call_states:
            state[CALLS_FIELD] = calls
        return state

    async def _take_delta(self, delta: dict[str, Any]) -> None:
        content = delta.get("content")
        await self._builder.add_text(as_text(content) or as_text(delta.get("refusal")))
        if content and isinstance(content, str) and delta.keys() <= _PLAIN_FIELDS:
            return
        parts: list[object] = [content] if isinstance(content, dict) else as_list(content)
        for part in map(as_object, parts):
            if part.get("type") in _THOUGHTS:
                await self._builder.add_reasoning(_thoughts_in(part))
            else:
                await self._builder.add_text(as_text(part.get("text")))
        calls = delta.get("tool_calls") or {"function": delta.get("function_call")}
        for call in map(as_object, as_list(calls) or [calls]):
            if "id" in call or call.get("function"):
                self._builder.add_function_call(call)
        merge_state(self._extra, delta)
        for name in _DETAILS:
            if name in delta:
                for detail in map(as_object, as_list(delta[name])):
                    self._add_detail(self._details[name], detail)
        for field in _REASONING_FIELDS:
            if field in delta and (piece := as_text(delta[field])):
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return

    def _add_detail(self, details: list[JsonObject], detail: JsonObject) -> None:
        """Add a piece of `_DETAILS`: a text of the same block continues that of the last piece."""
        self._details_chars += len(str(detail))
        if self._details_chars > MAX_STATE_CHARS:
            details.clear()
            return
        last = details[-1] if details else {}
        signed = bool(last.get("signature") and detail.get("thinking"))
        if not last or signed or any(last.get(name) != detail.get(name) for name in _DETAIL_BLOCK):
            details.append({**detail})
            return
        for name, value in detail.items():
            before = last.get(name)
            if name in _DETAIL_TEXTS and isinstance(before, str) and isinstance(value, str):
                last[name] = before + value
            elif value is not None:
                last[name] = value


def _thoughts_in(part: dict[str, Any]) -> str:
    """Return the reasoning of a part, which is a text or a list of parts itself."""
    inner = part.get("thinking") or part.get("summary") or part.get("text")
    return as_text(inner) or "".join(as_text(as_object(one).get("text")) for one in as_list(inner))


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_object(usage.get("prompt_tokens_details"))
    read, written = as_tokens(usage.get("prompt_tokens")), as_tokens(usage.get("completion_tokens"))
    thought = as_tokens(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if as_tokens(usage.get("total_tokens")) >= read + written + thought:
        # xAI counts reasoning in the total only; OpenAI counts it in the completion.
        written += thought
    # Moonshot and DeepSeek have fields of their own.
    cached = as_tokens(details.get("cached_tokens") or usage.get("cached_tokens") or usage.get(_HITS_FIELD))
    return Usage(input_tokens=read, output_tokens=written, cached_tokens=cached)
