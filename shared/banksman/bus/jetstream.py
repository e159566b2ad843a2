"""Requests to the JetStream API, and reads that the leader of a stream serves.

All functions raise what `call` raises.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.errors import NO_RESPONSE, NoResponders
from banksman.bus.messages import StoredMessage
from banksman.bus.names import CODE_NO_MESSAGE, CODE_NO_PEERS, CODE_NOT_ENABLED, api
from banksman.contracts.errors import Fault, Unavailable
from banksman.library_internals.nats_client import parse_headers
from banksman.runtime.backoff import Backoff, retry

BUDGET_S = 10.0
"""Seconds for which a request to the API is retried. An election or a server restart takes up to 8."""
_CODE_DELETE_FAILED = 10057
_TRY_S = 3.0
"""Seconds to wait for the response to one attempt."""
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
    """Send a request to the JetStream API and return the response.

    The request is retried while the API is unavailable, so it must be safe to repeat.

    Raises:
        ApiError: The API refused the request.
        Unavailable: No response arrived within `budget_s` seconds.
    """
    payload = json.dumps(body).encode() if body else b""

    async def attempt() -> dict[str, Any]:
        await bus.wait_connected()
        return await _call_once(bus, subject, payload)

    return await retry(
        attempt,
        again=bus.may_recover,
        backoff=Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
        budget_s=bus.budget(budget_s),
        failure=f"{subject}: no response",
        public=NO_RESPONSE,
    )


async def count_below(bus: Bus, stream: str, below: str) -> int:
    """Return the leader's count of the messages on the subjects that match `below`.

    The response names each subject: use it for streams with few of them, such as queues.
    """
    info = await call(bus, api("STREAM.INFO", stream), {"subjects_filter": below})
    return sum(cast(dict[str, int], info["state"].get("subjects") or {}).values())


async def subjects_in(
    bus: Bus, stream: str, below: str, *, request: str | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Yield the subjects of a stream that match `below`, each with its number of messages.

    Args:
        below: A subject with wildcards.
        request: The subject of `STREAM.INFO` for a stream of another account; None for one of this account.
    """
    offset = 0
    while True:
        body = {"subjects_filter": below, "offset": offset}
        info = await call(bus, request or api("STREAM.INFO", stream), body)
        page = cast(dict[str, int], info["state"].get("subjects") or {})
        for subject, count in page.items():
            yield subject, count
        # The server names at most 100,000 subjects in a response.
        offset += len(page)
        if not page or offset >= cast(int, info.get("total", 0)):
            return


async def last_message(
    bus: Bus, stream: str, subject: str, *, budget_s: float = BUDGET_S
) -> StoredMessage | None:
    """Return the last message on a subject, read from the leader; None if the subject has no message."""
    return await _get(bus, stream, {"last_by_subj": subject}, budget_s)


async def next_message(
    bus: Bus, stream: str, subject: str, *, after: int, budget_s: float = BUDGET_S
) -> StoredMessage | None:
    """Return the first message on a subject after a stream sequence, from the leader; None without one."""
    return await _get(bus, stream, {"seq": after + 1, "next_by_subj": subject}, budget_s)


async def purge_subject(
    bus: Bus, stream: str, subject: str, *, keep: int = 0, before: int | None = None
) -> int:
    """Remove messages of a subject; return how many were removed.

    Args:
        keep: Number of last messages to retain; not together with `before`.
        before: Stream sequence of the first message to retain; None removes all but `keep`.
    """
    which = {"seq": before} if before is not None else {"keep": keep} if keep else {}
    wanted = {"filter": subject, **which}
    response = await call(bus, api("STREAM.PURGE", stream), wanted)
    return cast(int, response.get("purged", 0))


async def delete_message(bus: Bus, stream: str, stream_seq: int) -> bool:
    """Remove one message; return False if it does not exist."""
    try:
        await call(bus, api("STREAM.MSG.DELETE", stream), {"seq": stream_seq})
    except ApiError as error:
        if error.err_code in (CODE_NO_MESSAGE, _CODE_DELETE_FAILED):
            return False
        raise
    return True


async def _call_once(bus: Bus, subject: str, payload: bytes) -> dict[str, Any]:
    message = await bus.replies.request(subject, payload, timeout_s=_TRY_S, until_reconnect=True)
    response = cast(dict[str, Any], json.loads(message.data))
    if error := cast(dict[str, Any] | None, response.get("error")):
        if error.get("code") == 503 and error.get("err_code") != CODE_NOT_ENABLED:
            # The API is temporarily unavailable: retry, as for a subject without responders.
            raise NoResponders(subject)
        # Servers of the cluster are still starting: retry.
        if error.get("err_code") == CODE_NO_PEERS:
            raise Unavailable(f"{subject}: {error.get('description')}", public=NO_RESPONSE)
        raise ApiError(subject, error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    return response


async def _get(bus: Bus, stream: str, which: Mapping[str, Any], budget_s: float) -> StoredMessage | None:
    try:
        response = await call(bus, api("STREAM.MSG.GET", stream), which, budget_s=budget_s)
    except ApiError as error:
        if error.err_code == CODE_NO_MESSAGE:
            return None
        raise
    return stored_message(response)


def stored_message(response: Mapping[str, Any]) -> StoredMessage:
    """Decode the message in a response of `STREAM.MSG.GET`."""
    message = cast(dict[str, Any], response["message"])
    return StoredMessage(
        subject=message["subject"],
        stream_seq=message["seq"],
        data=base64.b64decode(message.get("data", "")),
        headers=parse_headers(base64.b64decode(message.get("hdrs", ""))),
        time=message["time"],
    )
