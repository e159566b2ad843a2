"""The replies of a stream to a publish: an acknowledgement, or a refusal as a typed error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.errors import MessageTooLarge, PublishRefused, SlotTaken, WrongLastSequence
from banksman.bus.names import (
    CODE_DUPLICATE_UNDER_WAY,
    CODE_MESSAGE_TOO_LARGE,
    CODE_RESOURCES,
    CODE_STORE_FAILED,
    CODE_WRITE_UNDER_WAY,
    CODE_WRONG_LAST_SEQUENCE,
)
from banksman.contracts.errors import Overloaded

_SLOT_TAKEN = "maximum messages per subject exceeded"
_FULL = re.compile(r"maximum (bytes|messages) exceeded")


@dataclass(frozen=True, slots=True)
class PubAck:
    """Acknowledgement that the server stored the message."""

    stream: str
    stream_seq: int
    duplicate: bool
    """True when a message with this id was stored before; `stream_seq` is the sequence of that message."""
    tries: int = 1
    """Number of attempts that may have stored the message. A duplicate after more than one attempt is the
    message of an earlier attempt."""


class RetryableRefusal(Exception):
    """The outcome is unknown, or the stream cannot store the message now."""

    def __init__(self, reason: str, *, may_be_stored: bool = False) -> None:
        self.may_be_stored = may_be_stored
        super().__init__(reason)


def acknowledged(bus: Bus, subject: str, payload: bytes, reply: bytes, tries: int) -> PubAck:
    """Return the acknowledgement of a publish.

    Args:
        bus: The connection.
        subject: The subject of the message.
        payload: The message.
        reply: The reply of the stream.
        tries: Number of attempts that may have stored the message.

    Raises:
        RetryableRefusal: The stream cannot store the message now.
        SlotTaken, WrongLastSequence, Overloaded, MessageTooLarge, PublishRefused: As `publish.durable`.
    """
    fields = _parse(subject, reply)
    if error := fields.get("error"):
        raise _refusal(bus, subject, payload, cast(dict[str, Any], error))
    return PubAck(fields["stream"], fields["seq"], fields.get("duplicate", False), tries)


def _parse(subject: str, data: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(data)
    except ValueError as error:
        raise PublishRefused(subject, 0, f"the reply is not a PubAck: {data[:80]!r}") from error
    if not isinstance(reply, dict) or not ("error" in reply or "seq" in reply):
        raise PublishRefused(subject, 0, f"the reply is not a PubAck: {data[:80]!r}")
    return cast(dict[str, Any], reply)


def _refusal(bus: Bus, subject: str, payload: bytes, error: dict[str, Any]) -> Exception:
    code, text = error.get("err_code", 0), str(error.get("description", ""))
    # The server has one code for a taken slot, a full stream and a failing disk; only the text differs.
    if code == CODE_STORE_FAILED and text == _SLOT_TAKEN:
        return SlotTaken(subject)
    if code in CODE_RESOURCES or (code == CODE_STORE_FAILED and _FULL.search(text)):
        return Overloaded(f"storage is full: {subject}: {text}", retry_after_s=5.0, public="storage is full")
    if code == CODE_WRONG_LAST_SEQUENCE:
        return WrongLastSequence(subject, int(text.rpartition(" ")[2]) if text[-1:].isdigit() else 0)
    if code in (CODE_WRITE_UNDER_WAY, CODE_DUPLICATE_UNDER_WAY):
        # A cluster refuses a message while its servers replicate another one on the subject or with the same
        # id, which may be an earlier attempt of this one. The outcome is known only when that one is stored.
        return RetryableRefusal(f"{text} ({code})")
    if code == CODE_MESSAGE_TOO_LARGE:
        return MessageTooLarge(subject, len(payload), bus.max_payload)
    if error.get("code") == 503:
        # The JetStream API is temporarily unavailable, for example during an election.
        return RetryableRefusal(f"{text} ({code})")
    return PublishRefused(subject, code, text)
