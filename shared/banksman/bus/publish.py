"""The durable write: published, stored, acknowledged, or refused for a reason that has a type."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.errors import (
    MessageTooLarge,
    NoResponders,
    PublishRefused,
    SlotTaken,
    TimedOut,
    WrongLastSequence,
)
from banksman.bus.names import (
    CODE_DUPLICATE_UNDER_WAY,
    CODE_MESSAGE_TOO_LARGE,
    CODE_RESOURCES,
    CODE_STORE_FAILED,
    CODE_WRITE_UNDER_WAY,
    CODE_WRONG_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQ,
    MSG_ID,
    SCHEDULE,
    SCHEDULE_TARGET,
    api,
    stream_of,
)
from banksman.contracts.errors import BanksmanError, Overloaded, Unavailable
from banksman.runtime.backoff import Backoff, retry

logger = logging.getLogger(__name__)

BUDGET_S = 30.0
"""Seconds that a durable publish tries before it gives up. Electing a stream's leader takes up to 8."""
ACK_TIMEOUT_S = 5.0
"""Seconds to wait for one PubAck."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
LEADER_TIMEOUT_S = 0.8
DISK_FULL_RETRY_S = 5.0

_SLOT_TAKEN = "maximum messages per subject exceeded"
_FULL = re.compile(r"maximum (bytes|messages) exceeded")


@dataclass(frozen=True, slots=True)
class PubAck:
    """The server stored the message."""

    stream: str
    stream_seq: int
    duplicate: bool
    """A message with this id was stored before; `stream_seq` is its."""
    tries: int = 1
    """Times it was published and may have been stored. A duplicate after more than one is what an earlier try
    stored."""


class _TryAgain(Exception):
    """The outcome is not known, or the stream does not take it now."""

    def __init__(self, reason: str, *, may_be_stored: bool = False) -> None:
        self.may_be_stored = may_be_stored
        super().__init__(reason)


async def durable(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    msg_id: str,
    expect_last_subject_seq: int | None = None,
    headers: Mapping[str, str] | None = None,
    schedule_at: datetime | None = None,
    schedule_target: str | None = None,
    budget_s: float = BUDGET_S,
) -> PubAck:
    """Store a message in the stream that holds `subject`.

    Publishes again with the same message id when no acknowledgement comes, so the message is stored once.
    At most 16 are in flight on a connection.

    Args:
        bus: The connection.
        subject: A subject of a stream.
        payload: The message.
        msg_id: What the stream recognises a repeat by, on this subject and for ten minutes.
        expect_last_subject_seq: Stored only when this is the sequence of the last message on the subject (0:
            when there is none).
        headers: Sent with it.
        schedule_at: When a stream that allows schedules shall publish it on `schedule_target`.
        schedule_target: A subject of the same stream.
        budget_s: Seconds until it gives up.

    Raises:
        SlotTaken: the subject is write-once and holds another message.
        WrongLastSequence: the last message is another than expected. After a try whose acknowledgement was
            lost that may be this very message: compare ids.
        Overloaded: storage is full.
        MessageTooLarge: more than the stream or the server accepts.
        Forbidden: this user may not publish there.
        PublishRefused: the server refused it for another reason.
        Unavailable: the budget ran out, or earlier, where clients wait, the server stores nothing; whether it
            is stored is not known.
    """
    sent = _headers(
        message_id(subject, msg_id), expect_last_subject_seq, headers, schedule_at, schedule_target
    )
    tries = 1

    async def attempt() -> PubAck:
        nonlocal tries
        try:
            return await _publish(bus, subject, payload, sent, tries)
        except _TryAgain as again:
            tries += again.may_be_stored
            if isinstance(again.__cause__, TimedOut) and await _stores_nothing(bus, subject):
                full = f"{subject}: NATS responds but stores nothing: is its disk full?"
                raise Unavailable(full, retry_after_s=DISK_FULL_RETRY_S) from again
            raise

    return await retry(
        attempt,
        again=lambda error: isinstance(error, _TryAgain),
        backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
        budget_s=budget_s,
        failure=f"{subject}: not acknowledged",
    )


def message_id(subject: str, msg_id: str) -> str:
    """The message id as it is sent and stored.

    A stream recognises repeats over all its subjects. With the subject in it, and so the tenant, nobody's id
    can make another's message count as a repeat, which would be acknowledged and not stored.
    """
    return f"{subject}:{msg_id}"


async def _publish(bus: Bus, subject: str, payload: bytes, headers: Mapping[str, str], tries: int) -> PubAck:
    async with bus.publishes:
        # What is published while disconnected is buffered and stored much later: wait instead.
        await bus.wait_connected()
        try:
            message = await bus.replies.request(
                subject, payload, headers=headers, timeout_s=ACK_TIMEOUT_S, until_reconnect=True
            )
        except Unavailable as error:
            if bus.closed.is_set():
                raise
            raise _TryAgain(str(error), may_be_stored=not isinstance(error, NoResponders)) from error
    answer = _parse(subject, message.data)
    if error := answer.get("error"):
        raise _refusal(bus, subject, payload, cast(dict[str, Any], error))
    return PubAck(answer["stream"], answer["seq"], answer.get("duplicate", False), tries)


async def _stores_nothing(bus: Bus, subject: str) -> bool:
    """Whether a stream that did not acknowledge has a leader all the same: nothing changes by waiting.

    A full disk shows so. Without a leader, as during an election, nobody answers for the stream.
    """
    if not bus.answers_clients:
        return False
    try:
        answer = await bus.replies.request(
            api("STREAM.INFO", stream_of(subject)), b"", timeout_s=LEADER_TIMEOUT_S
        )
    except BanksmanError:
        return False
    return b'"state"' in answer.data


def _parse(subject: str, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise PublishRefused(subject, 0, f"the answer is no PubAck: {data[:80]!r}") from error
    if not isinstance(answer, dict) or not ("error" in answer or "seq" in answer):
        raise PublishRefused(subject, 0, f"the answer is no PubAck: {data[:80]!r}")
    return cast(dict[str, Any], answer)


def _refusal(bus: Bus, subject: str, payload: bytes, error: dict[str, Any]) -> Exception:
    code, text = error.get("err_code", 0), str(error.get("description", ""))
    # One code for a taken slot, a full stream and a failing disk; only the text tells them apart.
    if code == CODE_STORE_FAILED and text == _SLOT_TAKEN:
        return SlotTaken(subject)
    if code in CODE_RESOURCES or (code == CODE_STORE_FAILED and _FULL.search(text)):
        return Overloaded(f"storage is full: {subject}: {text}", retry_after_s=5.0)
    if code == CODE_WRONG_LAST_SEQUENCE:
        return WrongLastSequence(subject, int(text.rpartition(" ")[2]) if text[-1:].isdigit() else 0)
    if code in (CODE_WRITE_UNDER_WAY, CODE_DUPLICATE_UNDER_WAY):
        # Servers of a cluster say so while they agree on another message of the subject or of the same id,
        # perhaps this very one of an earlier try: only once that is stored do they know what there is.
        return _TryAgain(f"{text} ({code})")
    if code == CODE_MESSAGE_TOO_LARGE:
        return MessageTooLarge(subject, len(payload), bus.max_payload)
    if error.get("code") == 503:
        return _TryAgain(f"{text} ({code})")
    return PublishRefused(subject, code, text)


def _headers(
    msg_id: str,
    expect_last_subject_seq: int | None,
    more: Mapping[str, str] | None,
    schedule_at: datetime | None,
    schedule_target: str | None,
) -> dict[str, str]:
    headers = {**(more or {}), MSG_ID: msg_id}
    if expect_last_subject_seq is not None:
        headers[EXPECTED_LAST_SUBJECT_SEQ] = str(expect_last_subject_seq)
    if schedule_at is not None and schedule_target is not None:
        # The server wants whole seconds or fractions in UTC with a `Z`.
        moment = schedule_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        headers |= {SCHEDULE: f"@at {moment}", SCHEDULE_TARGET: schedule_target}
    return headers
