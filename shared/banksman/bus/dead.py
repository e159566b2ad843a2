"""Dead letters: poison messages in DEAD, with payload, reason and origin, and their replay."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage, StreamMessage
from banksman.bus.names import DEAD
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.calls import LateResult
from banksman.contracts.errors import BanksmanError, Conflict, NotFound
from banksman.contracts.work import DeadLetter

logger = logging.getLogger(__name__)

_SUBJECT = "Banksman-Dead-Subject"
_STREAM = "Banksman-Dead-Stream"
_STREAM_SEQ = "Banksman-Dead-Stream-Seq"
_REASON = "Banksman-Dead-Reason"
_HEADERS = "Banksman-Dead-Headers"

NATS_API = "API"
"""Origin of dead letters from the gateway's NATS API, in place of a stream."""
NOTES = "NOTES"
"""Origin of notes of late results, in place of a stream."""
_NOTE_S = 10.0
"""Seconds for which storing a note is retried."""

_HEADERS_OF_LETTER: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])
_NOT_TOKEN = re.compile(r"[^a-z0-9]+")
_MAX_REASON_CHARS = 500
_MAX_HEADER_BYTES = 8 * 1024
"""Maximum JSON bytes of the original headers that a dead letter keeps. With this limit, a dead letter of any
stored message fits into `max_payload`."""
_MAX_SEQUENCE_DIGITS = 20
REPORTED = 10_000
"""Number of unreadable messages that a process remembers, to report each of them once."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter and its stream sequence, which identifies it for a replay."""

    stream_seq: int
    letter: DeadLetter


async def dead_letter(
    bus: Bus,
    *,
    subject: str,
    stream: str,
    stream_seq: int,
    reason: str,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
) -> int:
    """Store a message that cannot be handled in DEAD; return its stream sequence there.

    Safe to repeat: the message id is built from the stream and the sequence of the original. The payload is
    unchanged and the origin is in headers, so that a dead letter of any stored message fits the limit.

    Raises:
        Unavailable: The message was not stored within the budget of a durable publish.
    """
    text = " ".join(reason.split())[:_MAX_REASON_CHARS]
    ack = await durable(
        bus,
        subjects.dead(stream, _token(text)),
        payload,
        msg_id=f"dead:{stream}:{stream_seq}",
        headers={
            _SUBJECT: subject,
            _STREAM: stream,
            _STREAM_SEQ: str(stream_seq),
            _REASON: text,
            _HEADERS: _kept(headers or {}),
        },
    )
    return ack.stream_seq


async def dead_letter_stored(bus: Bus, stream: str, message: StreamMessage, reason: str) -> None:
    """Store a message of a stream in DEAD, as `dead_letter`; the stream keeps it."""
    await dead_letter(
        bus,
        subject=message.subject,
        stream=stream,
        stream_seq=message.stream_seq,
        reason=reason,
        payload=message.data,
        headers=message.headers,
    )


class UnreadableMessages:
    """Reports stored messages that a reader skips: each once, to the log and to DEAD.

    The stream keeps the message, because other processes may be able to read it, or to replace it.
    """

    def __init__(self, bus: Bus, stream: str) -> None:
        self._bus = bus
        self._stream = stream
        self._reported: dict[int, None] = {}

    async def report(self, message: StoredMessage, reason: str) -> None:
        """Report a message unless this process has reported it. Never raises an error of the broker."""
        if message.stream_seq in self._reported:
            return
        if len(self._reported) >= REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[message.stream_seq] = None
        logger.error(
            "%s: message %d of %s is skipped: %s", message.subject, message.stream_seq, self._stream, reason
        )
        try:
            await dead_letter_stored(self._bus, self._stream, message, reason)
        except BanksmanError as error:
            logger.warning(
                "%s: message %d of %s was not dead-lettered: %s",
                message.subject,
                message.stream_seq,
                self._stream,
                error,
            )


async def store_late_result(bus: Bus, late: LateResult) -> int:
    """Store a late result for operators to read; return its stream sequence. Safe to repeat."""
    ack = await durable(
        bus,
        subjects.late_result(),
        late.model_dump_json(by_alias=True).encode(),
        msg_id=f"late:{late.tenant}:{late.attempt}:{late.runner}:{late.runner_epoch}",
        budget_s=_NOTE_S,
    )
    return ack.stream_seq


async def dead_letters(
    bus: Bus, *, stream: str | None = None, after: int = 0
) -> AsyncIterator[StoredDeadLetter]:
    """Yield the dead letters of one stream, or of all streams for None, oldest first."""
    which = subjects.all_of("dead", stream) if stream else subjects.all_of("dead")
    async for message in jetstream.read(bus, DEAD, which, after=after):
        yield StoredDeadLetter(message.stream_seq, _letter(message))


async def read_dead_letter(bus: Bus, stream_seq: int) -> DeadLetter:
    """Return one dead letter; raise `NotFound` if there is none at that sequence."""
    return _letter(await _stored(bus, stream_seq))


async def replay(bus: Bus, stream_seq: int) -> DeadLetter:
    """Publish a dead letter on its original subject, and remove it from DEAD.

    Raises:
        NotFound: There is no dead letter at that sequence.
        Conflict: It is a note, or it was never in a stream and its sender has to repeat it.
        Overloaded, Unavailable: It could not be published; it stays in DEAD.
    """
    message = await _stored(bus, stream_seq)
    letter = _letter(message)
    if letter.stream == NOTES:
        raise Conflict(f"dead letter {stream_seq} is a note of a late result and cannot be replayed")
    if letter.stream in (NATS_API, DEAD):
        raise Conflict(f"dead letter {stream_seq} was never in a stream: its sender has to repeat it")
    # Headers of the server (`Nats-…`) are instructions: an old message id or expected sequence would make it
    # refuse the message.
    ours = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    await durable(bus, letter.subject, message.data, msg_id=f"replay:{stream_seq}", headers=ours)
    await jetstream.delete_message(bus, DEAD, stream_seq)
    return letter


async def remove(bus: Bus, stream_seq: int) -> DeadLetter:
    """Delete a dead letter permanently and return it; raise `NotFound` if there is none at that sequence."""
    letter = await read_dead_letter(bus, stream_seq)
    await jetstream.delete_message(bus, DEAD, stream_seq)
    return letter


async def _stored(bus: Bus, stream_seq: int) -> StoredMessage:
    message = await jetstream.next_message(bus, DEAD, subjects.all_of("dead"), after=stream_seq - 1)
    if message is None or message.stream_seq != stream_seq:
        raise NotFound("dead letter", str(stream_seq))
    return message


def _letter(message: StoredMessage) -> DeadLetter:
    if message.subject == subjects.late_result():
        return _note(message)
    headers = message.headers
    origin = headers.get(_STREAM_SEQ, "")
    return DeadLetter(
        # Messages that were not stored by `dead_letter` lack some of these headers.
        subject=headers.get(_SUBJECT, message.subject),
        stream=headers.get(_STREAM, DEAD),
        # More digits than a sequence has would exceed what `int` converts.
        stream_seq=int(origin)
        if origin.isdecimal() and len(origin) <= _MAX_SEQUENCE_DIGITS
        else message.stream_seq,
        reason=headers.get(_REASON, "stored without a reason"),
        payload_base64=base64.b64encode(message.data).decode(),
        headers=_original_headers(headers.get(_HEADERS, "")),
        ts=datetime.fromisoformat(message.time),
    )


def _note(message: StoredMessage) -> DeadLetter:
    """Return the dead letter of a note. Only the body is read: an untrusted runner chooses the headers."""
    try:
        late = LateResult.model_validate_json(message.data)
    except ValidationError as error:
        subject, reason = message.subject, f"late_result: {error.error_count()} fields are wrong"
    else:
        subject = subjects.tool_result(late.tenant, late.attempt)
        reason = (
            f"late_result: call {late.result.tool_call_id} of run {late.run_id} in {late.conversation_id} "
            f"ended on {late.runner} (epoch {late.runner_epoch}) after another result was stored"
        )
    return DeadLetter(
        subject=subject,
        stream=NOTES,
        stream_seq=message.stream_seq,
        reason=reason,
        payload_base64=base64.b64encode(message.data).decode(),
        ts=datetime.fromisoformat(message.time),
    )


def _kept(headers: Mapping[str, str]) -> str:
    """Encode headers as JSON, and omit those that would exceed `_MAX_HEADER_BYTES`."""
    kept: dict[str, str] = {}
    size = 2
    for name, value in headers.items():
        size += len(json.dumps({name: value}))
        if size <= _MAX_HEADER_BYTES:
            kept[name] = value
    return json.dumps(kept)


def _original_headers(text: str) -> dict[str, str]:
    try:
        return _HEADERS_OF_LETTER.validate_json(text)
    except ValidationError:
        return {}


def _token(reason: str) -> str:
    return _NOT_TOKEN.sub("-", reason.lower())[:48].strip("-") or "unknown"
