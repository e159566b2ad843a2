"""Assemble a streamed reply from its pieces, and read fields of untyped JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from banksman.agent.protocols.base import MAX_NAME_CHARS, MAX_REPLY_CHARS, ModelReply, RawCall
from banksman.agent.providers.base import DeltaKind, DeltaSink
from banksman.agent.providers.exchanges import CALL_ID, OWN_ID, state_key
from banksman.agent.providers.state import MAX_STATE_CHARS
from banksman.agent.providers.untyped import as_count, as_object, as_text, well_formed
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import MAX_TOKENS, Usage
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runtime.redaction import content_without_secrets, without_secrets

_TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
}
"""The tags that begin reasoning, and those that end it."""
_MAX_UNDECIDED = 64
_UNOPENED = ("\n</think>\n", "\n[/THINK]\n")


class Thoughts:
    """Separates the reasoning at the beginning of a reply, which arrives in pieces.

    Tags after the first word of the answer are text: a user may have asked for them, and arguments of calls
    contain them.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._thought = False
        """True after a tag."""
        self._closing: str = ""
        """The tag that ends the reasoning; empty outside."""
        self._answers = False
        """True after the beginning of the answer."""

    def feed(self, piece: str) -> Iterator[tuple[DeltaKind, str]]:
        """Yield the parts of the text that are known to be text or reasoning; a part may be empty."""
        if self._answers:
            yield "message", piece
            return
        self._pending += piece
        while self._pending and not self._answers:
            if self._closing:
                before, closing, after = self._pending.partition(self._closing)
                keep = 0 if closing else _common_end(before, self._closing)
                yield "reasoning", before[: len(before) - keep]
                self._pending = after if closing else before[len(before) - keep :]
                self._closing = "" if closing else self._closing
                if not closing:
                    return
            else:
                bare = self._pending.lstrip()
                tag = next((tag for tag in _TAGS if bare.startswith(tag)), "")
                undecided = len(self._pending) < _MAX_UNDECIDED and any(one.startswith(bare) for one in _TAGS)
                if undecided and not tag:
                    return
                self._closing, self._answers = _TAGS.get(tag, ""), not tag
                self._thought = self._thought or not self._answers
                # The first line of an answer may be indented; what follows reasoning is only a separator.
                self._pending = bare[len(tag) :] if self._thought else self._pending
        yield "message", self.flush()

    def flush(self) -> str:
        """Return the text that could have become a tag."""
        rest, self._pending = self._pending, ""
        return "" if self._closing else rest


def without_unopened(text: str) -> str:
    """Return the text after reasoning without a first tag, which the prompt of some models contains."""
    if text.lstrip().startswith(("{", "`")):
        return text
    for closing in _UNOPENED:
        before, found, after = text.partition(closing)
        if found and "```" not in before:
            return after.lstrip()
    return text


def _common_end(text: str, tag: str) -> int:
    """Return the length of the longest end of a text that begins a tag."""
    longest = min(len(text), len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(tag[:length])), 0)


logger = logging.getLogger(__name__)

MAX_STREAMED_CHARS = MAX_REPLY_CHARS + 128 * 1024
"""Maximum characters of text and arguments. A longer reply is cut, because it must fit into one commit."""

MAX_CALLS = 1_600
"""Maximum calls of a reply; further ones are left out, which its text says. Approval requests for all of them
fit into one commit."""

_CALL_CHARS = 64
"""Characters that each call counts in addition to its arguments."""

_MAX_CHECKS = 16
"""Maximum number of times that the arguments of a call are parsed while they arrive."""

_CHARS_PER_TOKEN = 4

MAX_REASONING_CHARS = 1024 * 1024
"""Maximum characters of reasoning. A reply with more is cut."""

STATE_FIELDS = ("extra_content",)
"""Objects of a message or a call that servers expect back, such as Gemini's `thought_signature`."""
_CALL_FIELDS = (*STATE_FIELDS, "provider_specific_fields")
"""Those of a call; LiteLLM has the signature of Gemini in the last."""


@dataclass(slots=True)
class _Call:
    id: str | None = None
    name: str = ""
    written: list[str] = field(default_factory=list[str])
    parsed: JsonObject | None = None
    checks: int = 0
    state: JsonObject = field(default_factory=dict[str, JsonValue])
    """Fields that the vendor expects back with the call."""

    def add(self, name: str, arguments: str | JsonObject | None) -> None:
        if len(self.name) < MAX_NAME_CHARS:
            self.name = _joined(self.name, name)
        if isinstance(arguments, dict) and self.parsed is None:
            self.parsed = arguments
        elif arguments is not None:
            self.written.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def is_complete(self) -> bool:
        """Return whether the arguments so far are an object; False after `_MAX_CHECKS` calls."""
        if self.parsed is not None:
            return True
        if not self.written or not self.written[-1].rstrip().endswith("}") or self.checks >= _MAX_CHECKS:
            return False
        self.checks += 1
        try:
            return isinstance(json.loads("".join(self.written)), dict)
        except (ValueError, RecursionError):
            return False

    def repeats(self, name: str, arguments: object) -> bool:
        return name == self.name and arguments in (self.parsed, "".join(self.written))

    def kept(self) -> JsonObject:
        """Return the fields to send back, with an id that only its own server accepts.

        LiteLLM writes the signature of Gemini into the id, too.
        """
        return {**self.state, OWN_ID: self.id} if self.id and not CALL_ID.fullmatch(self.id) else self.state

    def raw(self) -> RawCall:
        written = without_secrets("".join(self.written))
        arguments = written if self.parsed is None else content_without_secrets(self.parsed)
        if self.parsed is not None and written.strip():
            # Written twice: the tool protocol accepts them if they are equal.
            arguments = json.dumps(arguments) + written
        return RawCall(well_formed(self.id or "") or None, well_formed(self.name), arguments)


def _joined(name: str, piece: str) -> str:
    """Return a name with its next piece; some servers repeat all of it so far."""
    return piece if piece.startswith(name) else name + piece


class ReplyBuilder:
    """Builds one reply from its pieces, and passes the pieces on to the delta sink."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._deltas = deltas
        self._text: list[str] = []
        self._thoughts = Thoughts()
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self.last_call = -1
        """The highest index of a call, including calls that are left out; -1 if there is no call."""
        self._latest: dict[int | None, int] = {}
        """The newest call of each index that a server uses; that of None is the newest call of the reply."""
        self._of_ids: dict[tuple[int | None, str], int] = {}
        self._chars = 0
        self._reasoning_chars = 0

    @property
    def full(self) -> bool:
        """True if the reply reached a size limit, so that the rest of the stream is not needed."""
        return self._chars > MAX_STREAMED_CHARS or self._reasoning_chars > MAX_REASONING_CHARS

    @property
    def is_empty(self) -> bool:
        """True if neither text nor reasoning nor a call was added."""
        return self._chars == self._reasoning_chars == 0 and self.last_call < 0

    @property
    def reasoning(self) -> str:
        return well_formed("".join(self._reasoning))

    async def add_text(self, piece: str) -> None:
        """Add a piece of the text, whose reasoning between tags counts as reasoning."""
        for kind, part in self._thoughts.feed(piece):
            if kind == "reasoning":
                await self.add_reasoning(part)
            elif part:
                self._text.append(part)
                self._chars += len(part)
                await self._deltas.write("message", well_formed(part))

    async def add_reasoning(self, piece: str) -> None:
        if piece:
            self._reasoning.append(piece)
            self._reasoning_chars += len(piece)
            await self._deltas.write("reasoning", well_formed(piece))

    def add_call(
        self,
        index: int,
        *,
        id: str | None = None,
        name: str | None = None,
        arguments: str | JsonObject | None = None,
    ) -> None:
        """Add a fragment of a call. The first id counts, because some servers repeat it."""
        # Counted also for a call that is left out, so that an endless stream of calls is cut.
        self._chars += _CALL_CHARS if index > self.last_call else 1
        self._chars += len(name or "") + (len(arguments) if isinstance(arguments, str) else 0)
        self.last_call = max(self.last_call, index)
        if index not in self._calls and len(self._calls) >= MAX_CALLS:
            return
        call = self._calls.setdefault(index, _Call())
        call.id = call.id or id
        call.add(name or "", arguments)

    def add_function_call(self, call: dict[str, Any], number: int | None = None) -> None:
        """Add a call or a fragment of a call in OpenAI's format; without a number it is found out."""
        function = as_object(call.get("function"))
        id, name = as_text(call.get("id")), as_text(function.get("name"))
        arguments = as_object(function.get("arguments")) or as_text(function.get("arguments"))
        if number is None:
            number = self._number_of(call.get("index"), id, name, arguments)
        self.add_call(number, id=id, name=name, arguments=arguments or None)
        if number in self._calls:
            merge_state(self._calls[number].state, call, _CALL_FIELDS)

    def _number_of(self, index: object, id: str, name: str, arguments: object) -> int:
        """Return the number of the call that a fragment belongs to.

        Servers omit index or id, give all parallel calls the index 0, or each fragment a new id.
        """
        place = index if isinstance(index, int) else None
        if id and (place, id) in self._of_ids:
            return self._of_ids[place, id]
        number = self._latest.get(place, -1)
        call = self._calls.get(number)
        if call is None:
            begins = True
        elif id and call.id and id != call.id:
            begins = bool(name) or not arguments
        else:
            begins = bool(name) and call.is_complete() and not call.repeats(name, arguments)
        if begins:
            number = self.last_call + 1
            if id and len(self._of_ids) < MAX_CALLS:
                self._of_ids[place, id] = number
            if place is None or len(self._latest) < MAX_CALLS:
                self._latest[place] = number
        self._latest[None] = number
        return number

    @property
    def has_complete_calls(self) -> bool:
        """True if there are calls, and each has one object or no text as its arguments."""
        return bool(self._calls) and all(
            call.is_complete() or not call.written for call in self._calls.values()
        )

    @property
    def call_states(self) -> JsonObject:
        """The fields that the vendor expects back with single calls, by `state_key`."""
        calls = enumerate(call for _, call in sorted(self._calls.items()))
        return {state_key(call.raw().provider_call_id, at): call.kept() for at, call in calls if call.kept()}

    def has_call(self, index: int) -> bool:
        return index in self._calls

    def reply(
        self,
        finish_reason: FinishReason,
        raw_finish_reason: str,
        usage: Usage,
        provider_state: JsonObject | None = None,
    ) -> ModelReply:
        if self.full:
            finish_reason, raw_finish_reason = "length", "reply too long"
            # Vendors report the usage at the end of the stream, which was not read. They charge it anyway.
            read = (self._chars + self._reasoning_chars) // _CHARS_PER_TOKEN
            usage = usage.model_copy(update={"output_tokens": max(usage.output_tokens, read)})
        if self.last_call >= MAX_CALLS == len(self._calls):
            # The model reads it with the results, and would otherwise count on the calls that are missing.
            self._text.append(f"\n\n[Further calls were left out: a reply has at most {MAX_CALLS} calls.]")
        text = without_unopened("".join((*self._text, self._thoughts.flush())))
        return ModelReply(
            text=without_secrets(well_formed(text)) or None,
            calls=tuple(call.raw() for _, call in sorted(self._calls.items())),
            finish_reason=finish_reason,
            raw_finish_reason=raw_finish_reason,
            usage=usage,
            provider_state=_clean(provider_state) if self._reasoning_chars <= MAX_STATE_CHARS else None,
        )


def merge_state(state: JsonObject, piece: dict[str, Any], names: tuple[str, ...] = STATE_FIELDS) -> None:
    """Add the opaque fields of a piece of a message or a call to those of its earlier pieces."""
    for name in names:
        for vendor, value in as_object(piece[name]).items() if name in piece else ():
            fields = as_object(state.setdefault(name, {}))
            fields[vendor] = {**as_object(fields.get(vendor)), **value} if isinstance(value, dict) else value


def _clean(state: JsonObject | None) -> JsonObject | None:
    if not state:
        return None
    written = json.dumps(state, ensure_ascii=False)
    clean = well_formed(written)
    return content_without_secrets(state if clean == written else json.loads(clean))


def as_tokens(value: object) -> int:
    """Return a reported number of tokens; 0 for anything that no vendor can mean, which is logged."""
    tokens = as_count(value)
    if 0 <= tokens <= MAX_TOKENS:
        return tokens
    logger.warning("a reported number of tokens is ignored", extra={"tokens": str(value)[:40]})
    return 0
