"""The pulls of a work loop: at most one is outstanding, and it requests as many messages as are wanted.

When a pull has returned all its messages and more are wanted, the next one is sent at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from nats.aio.msg import Msg

from banksman.bus.connection import Bus
from banksman.bus.names import DESCRIPTION, STATUS, api
from banksman.bus.settings import Replicas
from banksman.contracts.errors import Unavailable
from banksman.runtime.backoff import Backoff
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

PULL_EXPIRES_S = 30
"""Seconds after which the server ends a pull."""
PULL_HEARTBEAT_S: Mapping[Replicas, int] = {1: 5, 3: 1}
"""Seconds between the server's heartbeats for a pull, by number of replicas; after two missing heartbeats the
pull counts as lost. One server loses a pull only with the connection, which is noticed at once. Three servers
also lose it with the consumer's leader."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

_IDLE_HEARTBEAT = "100"
_REQUEST_TIMEOUT = "408"


class Pulls:
    """Pulls the messages of a durable consumer. The owner subscribes to `inbox` and reports messages."""

    def __init__(self, bus: Bus, stream: str, durable: str, wanted: Callable[[], int]) -> None:
        """Create the pulls; `wanted` returns the number of messages of the next one, 0 or less for none."""
        self.inbox = bus.nc.new_inbox()
        """Prefix of the subjects on which the server reports about pulls."""
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._wanted = wanted
        self._heartbeat_s = PULL_HEARTBEAT_S[bus.settings.replicas]
        self._changed = asyncio.Event()
        self._number = 0
        self._outstanding = 0
        """Messages that the current pull may still return."""
        self._received_at = 0.0
        """When the last message or heartbeat arrived, by the clock of the event loop."""
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._pause_s = 0.0
        """Seconds to wait before the next pull; 0 unless the last one failed."""

    async def run(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: self.check())
        try:
            while not stop.is_set() and not self._bus.closed.is_set():
                self._changed.clear()
                if self._outstanding and self._silent_for() > 2 * self._heartbeat_s:
                    logger.info(
                        "%s/%s: no heartbeat for a pull; sending another", self._stream, self._durable
                    )
                    self._outstanding = 0
                if not self._outstanding and self._wanted() > 0:
                    await self._pull()
                await set_within(self._changed, self._heartbeat_s)
        finally:
            stopped.cancel()

    def check(self) -> None:
        """Send the next pull if none is outstanding and messages are wanted."""
        self._changed.set()

    def forget(self) -> None:
        """Send the next pull: the server dropped the current one with the connection."""
        self._outstanding = 0
        self._changed.set()

    def message_arrived(self) -> None:
        self._received_at = asyncio.get_running_loop().time()
        self._outstanding = max(0, self._outstanding - 1)
        self._succeeded()

    def status_arrived(self, msg: Msg) -> None:
        # A status of an earlier pull says nothing about the current one.
        if msg.subject.rpartition(".")[2] != str(self._number):
            return
        self._received_at = asyncio.get_running_loop().time()
        headers = msg.headers or {}
        match headers.get(STATUS):
            case status if status == _IDLE_HEARTBEAT:
                pass
            case status if status == _REQUEST_TIMEOUT:
                self._succeeded()
                self.forget()
            case status:
                reason = headers.get(DESCRIPTION, "the consumer does not respond")
                self._failed(f"status {status}: {reason}")

    async def _pull(self) -> None:
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        if not self._bus.connected:
            return
        self._number += 1
        self._outstanding = self._wanted()
        self._received_at = asyncio.get_running_loop().time()
        body = {
            "batch": self._outstanding,
            "expires": PULL_EXPIRES_S * 1_000_000_000,
            "idle_heartbeat": self._heartbeat_s * 1_000_000_000,
        }
        target = api("CONSUMER.MSG.NEXT", self._stream, self._durable)
        try:
            await self._bus.replies.send(target, json.dumps(body).encode(), f"{self.inbox}.{self._number}")
        except Unavailable as error:
            self._failed(str(error))

    def _failed(self, reason: str) -> None:
        logger.info("%s/%s: a pull failed and is repeated: %s", self._stream, self._durable, reason)
        self._pause_s = self._backoff.next_s()
        self.forget()

    def _succeeded(self) -> None:
        self._pause_s = 0.0
        self._backoff.reset()

    def _silent_for(self) -> float:
        return asyncio.get_running_loop().time() - self._received_at
