"""One message on its way into a stream: its attempts, and what a refusal says about the earlier ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, PublishRefused, TimedOut, WrongLastSequence
from banksman.bus.names import EXPECTED_LAST_MSG_ID, EXPECTED_LAST_SUBJECT_SEQ, api, stream_of
from banksman.bus.pub_acks import PubAck, RetryableRefusal, acknowledged
from banksman.contracts.errors import BanksmanError, Unavailable

LEADER_TIMEOUT_S = 0.8
"""Seconds to wait for `STREAM.INFO`, which shows whether a stream has a leader, and for a PubAck after it."""
OVERLAPPING = 3
"""Attempts that wait for an acknowledgement at the same time, for a publish with `overlap_s`."""
DISK_FULL_RETRY_S = 5.0
"""Seconds after which clients are advised to retry while the server cannot store messages."""

_NO_MESSAGE = "no message has this id"


async def first_result(
    attempts: Callable[[], Coroutine[Any, Any, PubAck]], overlap_s: float, repeated: Callable[[], None]
) -> PubAck:
    """Return the first result of up to `OVERLAPPING` tasks that start `overlap_s` one after another.

    Args:
        attempts: Returns what one task executes.
        overlap_s: Seconds between two starts.
        repeated: Called before another task starts.

    Raises:
        BanksmanError: The error of the first task that ended, if that one failed.
    """
    running = {asyncio.create_task(attempts())}
    try:
        while True:
            may_start = len(running) < OVERLAPPING
            done, waiting = await asyncio.wait(
                running, timeout=overlap_s if may_start else None, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                # Of two that end together, one may have been refused because the other was stored.
                return min(done, key=lambda task: task.exception() is not None).result()
            repeated()
            running = {*waiting, asyncio.create_task(attempts())}
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for task in running:
            if not task.cancelled():
                # Otherwise asyncio reports that nothing has read the error.
                task.exception()


@dataclass(slots=True)
class Publication:
    """A message, and the attempts to store it."""

    bus: Bus
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    attempt_s: float
    urgent: bool
    timeout_s: float
    """Seconds to wait for the acknowledgement of the next attempt."""
    tries: int = 1
    """Attempts that may have stored the message."""

    def repeated(self) -> None:
        """Note that an attempt starts while another one waits, which may have stored the message."""
        self.tries += 1

    async def attempt(self) -> PubAck:
        """Publish the message and wait for its acknowledgement.

        Raises:
            RetryableRefusal: It may be published again.
            BanksmanError: As `durable`.
        """
        try:
            try:
                return await self._publish(self.headers, self.timeout_s)
            except WrongLastSequence as refused:
                stored = await self._earlier_attempt(refused)
                if stored is None:
                    raise
                return stored
        except RetryableRefusal as again:
            self.tries += again.may_be_stored
            # A server with a full disk responds but never sends a PubAck, and retries do not help. A client
            # then gets an error early; other callers use the whole budget. A server that was frozen responds
            # again too, so a short second attempt decides which of the two it is.
            if isinstance(again.__cause__, TimedOut):
                if self.timeout_s == LEADER_TIMEOUT_S:
                    text = "NATS responds but cannot store messages; its disk may be full"
                    raise Unavailable(
                        f"{self.subject}: {text}", retry_after_s=DISK_FULL_RETRY_S, public=text
                    ) from again
                has_leader = await _has_leader(self.bus, self.subject)
                self.timeout_s = LEADER_TIMEOUT_S if has_leader else self.attempt_s
            raise

    async def _publish(self, headers: Mapping[str, str], timeout_s: float) -> PubAck:
        bus = self.bus
        async with contextlib.nullcontext() if self.urgent else bus.publishes:
            # nats-py buffers what is published while disconnected and sends it after the reconnect, when the
            # caller may have given up. Therefore wait for the connection.
            await bus.wait_connected()
            try:
                message = await bus.store_request(self.subject, self.payload, headers, timeout_s)
            except Unavailable as error:
                if bus.closed.is_set():
                    raise
                may_be_stored = not isinstance(error, NoResponders)
                raise RetryableRefusal(str(error), may_be_stored=may_be_stored) from error
        return acknowledged(bus, self.subject, self.payload, message.data, self.tries)

    async def _earlier_attempt(self, refused: WrongLastSequence) -> PubAck | None:
        """Return the acknowledgement of an earlier attempt if it stored the last message of the subject.

        A single server compares sequences before it recognises a repeat, so it refuses the repeat of a
        message that it has stored. It recognises repeats before it compares message ids: with an id that no
        message has, a repeat is acknowledged, and any other message is refused. Servers of a cluster
        recognise repeats first.
        """
        if self.tries == 1 or self.bus.settings.replicas != 1:
            return None
        conditions = {EXPECTED_LAST_SUBJECT_SEQ: str(refused.found), EXPECTED_LAST_MSG_ID: _NO_MESSAGE}
        try:
            stored = await self._publish({**self.headers, **conditions}, self.attempt_s)
        except (WrongLastSequence, PublishRefused):
            return None
        return stored if stored.stream_seq == refused.found else None


async def _has_leader(bus: Bus, subject: str) -> bool:
    """Return whether the stream has a leader although it did not acknowledge; False where no client waits.

    During an election the stream has no leader, and `STREAM.INFO` gets no reply.
    """
    if not bus.serves_clients:
        return False
    try:
        reply = await bus.replies.request(
            api("STREAM.INFO", stream_of(subject)), b"", timeout_s=LEADER_TIMEOUT_S
        )
    except BanksmanError:
        return False
    return b'"state"' in reply.data
