"""Dead letters: where poison ends, with its payload, its reason and its origin, and how it comes back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from banksman.bus import direct
from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError, call, delete_message, stored_message
from banksman.bus.messages import StoredMessage
from banksman.bus.names import CODE_NO_MESSAGE, DEAD, api
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.calls import LateResult
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.work import DeadLetter

_SUBJECT = "Banksman-Dead-Subject"
_STREAM = "Banksman-Dead-Stream"
_STREAM_SEQ = "Banksman-Dead-Stream-Seq"
_REASON = "Banksman-Dead-Reason"
_HEADERS = "Banksman-Dead-Headers"

DOOR = "API"
"""Where dead letters of the NATS door say they come from: no stream."""
NOTES = "NOTES"
"""Likewise of late results."""
_NOTE_S = 10.0
"""Seconds that storing a note may take."""

_HEADERS_OF_LETTER: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])
_NOT_TOKEN = re.compile(r"[^a-z0-9]+")
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter and its place in the stream, by which it is replayed."""

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
    """Store a message that cannot be read; the same one twice is stored once. Returns its stream sequence.

    The payload is kept as it was, its origin in headers, so that it fits wherever the original did.

    Raises:
        Overloaded: the stream of dead letters is full.
        Unavailable: not stored within the budget of a durable publish.
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
            _HEADERS: json.dumps(dict(headers or {})),
        },
    )
    return ack.stream_seq


async def note_late(bus: Bus, late: LateResult) -> int:
    """Keep a late result for people to read; the same one twice is stored once. Returns its stream sequence.

    Raises:
        Overloaded: the stream of dead letters is full.
        Forbidden: this user may not store notes.
        Unavailable: not stored in time.
    """
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
    """All dead letters, oldest first; of one stream when it is named."""
    which = subjects.all_of("dead", stream) if stream else subjects.all_of("dead")
    async for message in direct.read(bus, DEAD, which, after=after):
        yield StoredDeadLetter(message.stream_seq, _letter(message))


async def read_dead_letter(bus: Bus, stream_seq: int) -> DeadLetter:
    """Return one dead letter.

    Raises:
        NotFound: There is none at that sequence.
    """
    return _letter(await _stored(bus, stream_seq))


async def replay(bus: Bus, stream_seq: int) -> DeadLetter:
    """Publish a dead letter on its own subject again, and remove it.

    Raises:
        NotFound: there is none at that sequence.
        Conflict: it is a note, or came over a door, where clients repeat what they ask for.
        Overloaded, Unavailable: it could not be published; it stays.
    """
    message = await _stored(bus, stream_seq)
    letter = _letter(message)
    if letter.stream == NOTES:
        raise Conflict(f"dead letter {stream_seq} is a note of a late result, no work: nothing replays it")
    if letter.stream in (DOOR, DEAD):
        raise Conflict(f"dead letter {stream_seq} was never in a stream: its sender has to repeat it")
    ours = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    await durable(bus, letter.subject, message.data, msg_id=f"replay:{stream_seq}", headers=ours)
    await delete_message(bus, DEAD, stream_seq)
    return letter


async def remove(bus: Bus, stream_seq: int) -> DeadLetter:
    """Remove a dead letter for good; returns what it was.

    Raises:
        NotFound: there is none at that sequence.
    """
    letter = await dead_letter(bus, stream_seq)
    await delete_message(bus, DEAD, stream_seq)
    return letter


async def _stored(bus: Bus, stream_seq: int) -> StoredMessage:
    try:
        answer = await call(bus, api("STREAM.MSG.GET", DEAD), {"seq": stream_seq})
    except ApiError as error:
        if error.err_code == CODE_NO_MESSAGE:
            raise NotFound("dead letter", str(stream_seq)) from error
        raise
    return stored_message(answer)


def _letter(message: StoredMessage) -> DeadLetter:
    if message.subject == subjects.late_result():
        return _note(message)
    headers = message.headers
    origin = headers.get(_STREAM_SEQ, "")
    return DeadLetter(
        # What others than `dead_letter` stored here says less of itself.
        subject=headers.get(_SUBJECT, message.subject),
        stream=headers.get(_STREAM, DEAD),
        stream_seq=int(origin) if origin.isdecimal() else message.stream_seq,
        reason=headers.get(_REASON, "stored without a reason"),
        payload_base64=base64.b64encode(message.data).decode(),
        headers=_original_headers(headers.get(_HEADERS, "")),
        ts=datetime.fromisoformat(message.time),
    )


def _note(message: StoredMessage) -> DeadLetter:
    """Goes by the body alone: headers of a runner that nobody trusts must not say where it comes from."""
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


def _original_headers(text: str) -> dict[str, str]:
    try:
        return _HEADERS_OF_LETTER.validate_json(text)
    except ValidationError:
        return {}


def _token(reason: str) -> str:
    return _NOT_TOKEN.sub("-", reason.lower())[:48].strip("-") or "unknown"
