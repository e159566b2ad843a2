"""Requests to the JetStream API, and reads of streams from their leader or from any replica.

A replica that was disconnected or frozen may lag behind the leader. Reads that a decision depends on use
`last_message`, `next_message`, or `read` with `current`. Functions raise what `call` raises.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.errors import NO_RESPONSE, NoResponders, TimedOut
from banksman.bus.messages import Message, StoredMessage
from banksman.contracts.errors import BanksmanError, Fault, Unavailable
from banksman.library_internals.nats_client import parse_headers
from banksman.runtime.backoff import Backoff, retry

BUDGET_S = 10.0
"""Seconds for which a request to the API is retried. An election or a server restart takes up to 8."""
_CODE_DELETE_FAILED = 10057
_TRY_S = 3.0
"""Seconds to wait for the response to one attempt."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
BATCH_MESSAGES = 256
"""Messages per batch of `read`."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes after which the server ends a batch early."""
_SILENCE_S = 2.0
"""Seconds without a message after which a batch counts as interrupted and the rest is requested again."""


class ApiError(Fault):
    """The JetStream API refused a request."""

    def __init__(self, subject: str, err_code: int, description: str) -> None:
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
        async with bus.measured():
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
    info = await call(bus, names.api("STREAM.INFO", stream), {"subjects_filter": below})
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
        info = await call(bus, request or names.api("STREAM.INFO", stream), body)
        page = cast(dict[str, int], info["state"].get("subjects") or {})
        for subject, count in page.items():
            yield subject, count
        # The server names at most 100,000 subjects in a response.
        offset += len(page)
        if not page or offset >= cast(int, info.get("total", 0)):
            return


async def last_message(bus: Bus, stream: str, subject: str) -> StoredMessage | None:
    """Return the last message on a subject, read from the leader; None if the subject has no message."""
    return await _get(bus, stream, {"last_by_subj": subject})


async def next_message(bus: Bus, stream: str, subject: str, *, after: int) -> StoredMessage | None:
    """Return the first message on a subject after a stream sequence, from the leader; None without one."""
    return await _get(bus, stream, {"seq": after + 1, "next_by_subj": subject})


async def read(
    bus: Bus, stream: str, subject: str, *, after: int = 0, current: bool = False
) -> AsyncIterator[StoredMessage]:
    """Yield every stored message on a subject after a stream sequence, in order, read in batches.

    Args:
        after: Stream sequence after which to start; 0 for all.
        current: True also requests from the leader, at the end, the messages that the replica does not have
            yet. With False the newest messages may be missing, and removed messages may be returned.

    Raises:
        Unavailable: No message arrived for `BUDGET_S` seconds.
    """
    loop = asyncio.get_running_loop()
    budget_s = bus.budget(BUDGET_S)
    deadline = loop.time() + budget_s
    while True:
        batch = await _batch(bus, stream, subject, after)
        for message in batch.messages:
            yield message
            after = message.stream_seq
        if batch.complete and not batch.pending:
            break
        if batch.messages:
            deadline = loop.time() + budget_s
            continue
        try:
            async with asyncio.timeout_at(deadline):
                await bus.wait_connected()
                await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise Unavailable(
                f"{stream}: {subject} could not be read within {budget_s:g} s", public=NO_RESPONSE
            ) from error
    while current and (message := await next_message(bus, stream, subject, after=after)):
        yield message
        after = message.stream_seq


async def count_on_replica(bus: Bus, stream: str, subject: str) -> int:
    """Return how many messages a replica has on a subject. Transfers only one of them."""
    batch = await _batch(bus, stream, subject, 0, messages=1)
    if not batch.complete:
        raise Unavailable(f"{stream}: {subject} could not be counted", public=NO_RESPONSE)
    return len(batch.messages) + batch.pending


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
    response = await call(bus, names.api("STREAM.PURGE", stream), wanted)
    return cast(int, response.get("purged", 0))


async def delete_message(bus: Bus, stream: str, stream_seq: int) -> bool:
    """Remove one message; return False if it does not exist."""
    try:
        await call(bus, names.api("STREAM.MSG.DELETE", stream), {"seq": stream_seq})
    except ApiError as error:
        if error.err_code in (names.CODE_NO_MESSAGE, _CODE_DELETE_FAILED):
            return False
        raise
    return True


async def _call_once(bus: Bus, subject: str, payload: bytes) -> dict[str, Any]:
    message = await bus.replies.request(subject, payload, timeout_s=_TRY_S, until_reconnect=True)
    response = cast(dict[str, Any], json.loads(message.data))
    if error := cast(dict[str, Any] | None, response.get("error")):
        if error.get("code") == 503 and error.get("err_code") != names.CODE_NOT_ENABLED:
            # The API is temporarily unavailable: retry, as for a subject without responders.
            raise NoResponders(subject)
        # Servers of the cluster are still starting: retry.
        if error.get("err_code") == names.CODE_NO_PEERS:
            raise Unavailable(f"{subject}: {error.get('description')}", public=NO_RESPONSE)
        raise ApiError(subject, error.get("err_code", 0), error.get("description", ""))
    return response


async def _get(bus: Bus, stream: str, which: Mapping[str, Any]) -> StoredMessage | None:
    try:
        response = await call(bus, names.api("STREAM.MSG.GET", stream), which)
    except ApiError as error:
        if error.err_code == names.CODE_NO_MESSAGE:
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


@dataclass(frozen=True, slots=True)
class _Batch:
    """The replies to one batched direct get.

    Protocol: ADR-31, https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md.
    """

    messages: list[StoredMessage]
    complete: bool
    """False when it was interrupted: the rest must be requested again."""
    pending: int
    """Number of matching messages after these."""


async def _batch(
    bus: Bus, stream: str, subject: str, after: int, *, messages: int = BATCH_MESSAGES
) -> _Batch:
    replies: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    body = {"seq": after + 1, "next_by_subj": subject, "batch": messages, "max_bytes": BATCH_BYTES}
    target = names.api("DIRECT.GET", stream)
    received: list[StoredMessage] = []
    with bus.replies.expect(target, replies.put_nowait, replies.put_nowait, until_reconnect=True) as inbox:
        try:
            await bus.replies.send(target, json.dumps(body).encode(), inbox)
            while True:
                item = await _next(replies, target)
                if isinstance(item, StoredMessage):
                    received.append(item)
                else:
                    return _Batch(received, complete=True, pending=item)
        except Unavailable as error:
            if not bus.may_recover(error):
                raise
            return _Batch(received, complete=False, pending=1)


async def _next(replies: asyncio.Queue[Message | BanksmanError], target: str) -> StoredMessage | int:
    """Return the next message of a batch, or at its end the number of matching messages after it."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            reply = await replies.get()
    except TimeoutError as error:
        raise TimedOut(target, _SILENCE_S) from error
    if isinstance(reply, BanksmanError):
        raise reply
    # The server adds the subject and the sequence only to stored messages. The status alone proves nothing:
    # a publisher chooses the headers of its message, and may add a status.
    if names.SUBJECT in reply.headers and names.SEQUENCE in reply.headers:
        return republished(reply)
    match reply.status:
        case None:
            raise ApiError(target, 0, "a reply is neither a stored message nor a status")
        case status if status == names.STATUS_END_OF_BATCH:
            return int(reply.headers.get(names.NUM_PENDING, "0"))
        case status if status == names.STATUS_NOT_FOUND:
            return 0
        case status if status == names.STATUS_NO_RESPONDERS:
            raise NoResponders(target)
        case status:
            raise ApiError(target, 0, reply.headers.get(names.DESCRIPTION, ""))


def republished(message: Message) -> StoredMessage:
    """Return a stored message that the server sent with its subject, sequence and time in headers."""
    headers = message.headers
    return StoredMessage(
        headers[names.SUBJECT], message.data, headers, int(headers[names.SEQUENCE]), headers[names.TIME_STAMP]
    )
