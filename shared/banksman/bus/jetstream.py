"""Requests to the JetStream API, and reads that only a stream's leader answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders
from banksman.bus.messages import StoredMessage
from banksman.bus.names import CODE_NO_MESSAGE, CODE_NO_PEERS, CODE_NOT_ENABLED, api
from banksman.contracts.errors import Fault, Unavailable
from banksman.runtime.backoff import Backoff, retry

BUDGET_S = 10.0
"""Seconds that a request to the API is repeated while a leader is elected or the server restarts."""
_CODE_DELETE_FAILED = 10057
_TRY_S = 3.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class ApiError(Fault):
    """The JetStream API refused a request."""

    def __init__(self, subject: str, code: int, err_code: int, description: str) -> None:
        self.subject = subject
        self.status = code
        self.err_code = err_code
        self.description = description
        super().__init__(f"{subject}: {description} ({err_code})")


async def call(
    bus: Bus, subject: str, body: Mapping[str, Any] | None = None, *, budget_s: float = BUDGET_S
) -> dict[str, Any]:
    """Ask the JetStream API; asked again while it cannot answer, so only for what is safe to repeat.

    Raises:
        ApiError: it refused.
        Unavailable: no answer within `budget_s`.
        Forbidden: this user may not ask that.
    """
    payload = json.dumps(body).encode() if body else b""

    async def attempt() -> dict[str, Any]:
        await bus.wait_connected()
        return await _call_once(bus, subject, payload)

    return await retry(
        attempt,
        again=bus.may_recover,
        backoff=Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
        budget_s=budget_s,
        failure=f"{subject}: no answer",
    )


async def last_message(
    bus: Bus, stream: str, subject: str, *, budget_s: float = BUDGET_S
) -> StoredMessage | None:
    """The last message on `subject`, as the stream's leader knows it; None when there is none."""
    return await _get(bus, stream, {"last_by_subj": subject}, budget_s)


async def next_message(
    bus: Bus, stream: str, subject: str, *, after: int, budget_s: float = BUDGET_S
) -> StoredMessage | None:
    """The first message on `subject` after a stream sequence, as the leader knows it; None when none is."""
    return await _get(bus, stream, {"seq": after + 1, "next_by_subj": subject}, budget_s)


async def purge_subject(
    bus: Bus, stream: str, subject: str, *, keep: int = 0, before: int | None = None
) -> int:
    """Remove the messages of a subject; returns how many were removed.

    Args:
        bus: The connection.
        stream: The stream that holds them.
        subject: May hold wildcards.
        keep: The last ones that stay; not together with `before`.
        before: Stream sequence of the first one that stays.
    """
    which = {"seq": before} if before is not None else {"keep": keep} if keep else {}
    wanted = {"filter": subject, **which}
    answer = await call(bus, api("STREAM.PURGE", stream), wanted)
    return cast(int, answer.get("purged", 0))


async def delete_message(bus: Bus, stream: str, stream_seq: int) -> bool:
    """Remove one message; False when it is gone already."""
    try:
        await call(bus, api("STREAM.MSG.DELETE", stream), {"seq": stream_seq})
    except ApiError as error:
        if error.err_code in (CODE_NO_MESSAGE, _CODE_DELETE_FAILED):
            return False
        raise
    return True


async def _call_once(bus: Bus, subject: str, payload: bytes) -> dict[str, Any]:
    message = await bus.replies.request(subject, payload, timeout_s=_TRY_S, until_reconnect=True)
    answer = cast(dict[str, Any], json.loads(message.data))
    if error := cast(dict[str, Any] | None, answer.get("error")):
        if error.get("code") == 503 and error.get("err_code") != CODE_NOT_ENABLED:
            raise NoResponders(subject)
        if error.get("err_code") == CODE_NO_PEERS:
            raise Unavailable(f"{subject}: {error.get('description')}")
        raise ApiError(subject, error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    return answer


async def _get(bus: Bus, stream: str, which: Mapping[str, Any], budget_s: float) -> StoredMessage | None:
    try:
        answer = await call(bus, api("STREAM.MSG.GET", stream), which, budget_s=budget_s)
    except ApiError as error:
        if error.err_code == CODE_NO_MESSAGE:
            return None
        raise
    return stored_message(answer)


def stored_message(answer: Mapping[str, Any]) -> StoredMessage:
    """The message in an answer of `STREAM.MSG.GET`."""
    message = cast(dict[str, Any], answer["message"])
    return StoredMessage(
        subject=message["subject"],
        stream_seq=message["seq"],
        data=base64.b64decode(message.get("data", "")),
        headers=_headers(base64.b64decode(message.get("hdrs", ""))),
        time=message["time"],
    )


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip(): value.strip() for name, _, value in pairs}
