"""Stores messages of runners and tool servers after a check.

The broker maps their starts, results and leases to the relay's subjects, because the users of other accounts
must not write to shared streams: the server checks neither bodies nor headers, so such a user could take the
slot of any call, or fill a stream. A start or a result in account RUN is stored only with the ticket of its
call. A tenant's own tool servers may omit the ticket; the number of their messages is limited.

The replies are those of JetStream, unchanged, so the publisher cannot distinguish the relay from the stream.
A publisher that receives acknowledgements directly gets only refusals from here (`AcknowledgedWrites`).
"""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from banksman.agent.relayed_messages import RelayChecks, TenantRedaction, Write
from banksman.bus.connection import Bus
from banksman.bus.control_plane.broker import Intake
from banksman.bus.errors import MessageTooLarge, NoResponders
from banksman.bus.messages import Message
from banksman.bus.names import (
    ACK,
    AGENTS,
    CODE_MESSAGE_TOO_LARGE,
    EXPECTED_LAST_SUBJECT_SEQ,
    RESULTS,
    RUNNERS,
    kv_stream,
    kv_subject,
)
from banksman.bus.secrets import CallTickets
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError, Forbidden, Overloaded, Refused, Unavailable
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.quotas.rates import TooManyRequests
from banksman.quotas.stored import MessageRoom, StreamUse, fixed_share
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

TENANT_RATE: Final = 2_000.0
"""Messages per second of one tenant that an agent relays; further ones are refused. All runs that an agent
can drive need fewer."""
STORE_S: Final = 4.0
"""Seconds to wait for JetStream; less than the publisher waits for the reply."""
SMALL_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 320 * 1024
"""Results over `SMALL_BYTES` have a lower limit: the number that fits if each has `LARGE_BYTES`."""
_CODE_RESOURCES = 10047


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Maximum numbers of messages of one tenant."""

    leases: int = 256
    """Leases of the processes of one tenant, or of one tool server of the platform. Leases that ended in the
    last minute count."""
    slots: int = 5_000
    """Starts of one tenant, and results of one tenant. Both are removed when the result of their call is
    committed; the start of a call that was cancelled or sent again stays 30 days."""


LIMITS: Final = RoomLimits()


class Relay(Scoped):
    def __init__(
        self, bus: Bus, tickets: CallTickets, redaction: TenantRedaction, *, limits: RoomLimits = LIMITS
    ) -> None:
        self._bus = bus
        self._checks = RelayChecks(tickets, redaction)
        self._writes = AcknowledgedWrites(bus)
        self._runners = Intake(bus, None, refusal=_refusal)
        self._tenants = Intake(bus, TENANT_RATE, tenant_token=3, refusal=_refusal)
        self._room = RelayRoom(bus, limits)

    async def _enter(self, scope: AsyncExitStack) -> None:
        for part in (self._writes, self._tenants, self._runners):
            await scope.enter_async_context(part)
        for source, receive in ((RUN_ACCOUNT, self._from_run), (TENANT_ACCOUNT, self._from_tenant)):
            subscription = await self._bus.subscribe(subjects.all_of("relay", source), receive, AGENTS)
            scope.push_async_callback(subscription.unsubscribe)
        await self._bus.ready()

    async def _from_run(self, message: Message) -> None:
        # Checked before the message waits for its turn: messages without a ticket take no place in the queue.
        try:
            write = self._checks.checked(message, tenant=None)
        except BanksmanError as error:
            await self._reply(message, _refusal(error))
            return
        await self._runners(message.subject, message.reply, partial(self._handle, message, write))

    async def _from_tenant(self, message: Message) -> None:
        await self._tenants(message.subject, message.reply, partial(self._handle, message))

    async def _handle(self, message: Message, write: Write | None = None) -> None:
        reconnects = self._bus.stats.reconnects
        reply: bytes | None
        try:
            reply = await self._store(message, write)
        except BanksmanError as error:
            reply = _refusal(error)
        except Exception as error:
            logger.exception("%s: the relay failed", message.subject)
            reply = _refusal(Unavailable(f"the relay failed: {type(error).__name__}"))
        # The server permits the reply only on the connection that received the request.
        if reply is not None and self._bus.stats.reconnects == reconnects:
            await self._reply(message, reply)

    async def _store(self, message: Message, write: Write | None) -> bytes | None:
        """Store a message and return the reply to send; None if the publisher gets none from here.

        While the outcome is unknown, the publisher gets no reply. It then repeats the message with the same
        id after its own timeout, and the stream recognises the repeat. An error reply would let the publisher
        take its own stored message for that of another process.
        """
        if write is None:
            write = self._checks.checked(message, tenant=message.subject.split(".")[3])
        if write.subject != subjects.late_result():
            await self._room.take(message, write)
        try:
            return await self._writes.store(message, write)
        except NoResponders:
            raise
        except Unavailable:
            return None

    async def _reply(self, message: Message, data: bytes) -> None:
        if message.reply:
            await self._bus.publish(message.reply, data)


def _refusal(error: BanksmanError) -> bytes:
    """Encode an error as JetStream does, whose replies the publisher expects."""
    code, err_code = 400, 0
    match error:
        case MessageTooLarge():
            err_code = CODE_MESSAGE_TOO_LARGE
        case Overloaded():
            code, err_code = 503, _CODE_RESOURCES
        case Refused() | TooManyRequests():
            # The publisher repeats the message after a pause.
            code = 503
        case Forbidden():
            code = 403
        case _:
            pass
    description = f"{error.code.value}: {error}"
    return json.dumps({"error": {"code": code, "err_code": err_code, "description": description}}).encode()


class RelayRoom:
    """Counts the messages of tool servers against `RoomLimits`."""

    def __init__(self, bus: Bus, limits: RoomLimits) -> None:
        self._room = MessageRoom(bus)
        self._limits = limits

    async def take(self, message: Message, write: Write) -> None:
        """Count a message.

        Raises:
            Overloaded: The messages of a tenant, or of one tool server, leave no room for others.
            Unavailable: The server did not respond.
        """
        _, source, kind, owner, *_ = message.subject.split(".")
        of_tenant = source == TENANT_ACCOUNT
        if kind == "lease":
            if write.headers.get(EXPECTED_LAST_SUBJECT_SEQ, "0") == "0":
                below = kv_subject(RUNNERS, f"{ANY}.{owner}.{ANY}" if of_tenant else f"{owner}.{ANY}")
                leases = self._limits.leases
                await self._room.take(kv_stream(RUNNERS), below, lambda _: leases, f"leases of {owner}")
        elif of_tenant and kind == "started":
            below = subjects.tool_started(owner, ANY)
            await self._room.take(RESULTS, below, lambda _: self._limits.slots, "starts")
        elif of_tenant:
            await self._take_result(owner, SMALL_BYTES if len(write.data) <= SMALL_BYTES else LARGE_BYTES)

    async def _take_result(self, tenant: str, charged: int) -> None:
        def most(use: StreamUse) -> int:
            return min(self._limits.slots, fixed_share(use, charged))

        await self._room.take(RESULTS, subjects.tool_result(tenant, ANY), most, "results", charged=charged)


class AcknowledgedWrites(Scoped):
    """Writes to streams; as a context manager it receives the acknowledgements.

    A publisher that names its inbox gets the acknowledgement of the stream on a subject that the server also
    delivers to this process, which must know when a write has ended. The publisher chooses only its inbox and
    a number in this subject, so it cannot direct an acknowledgement to another publisher or into a stream.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._agent = new_id("")

    async def _enter(self, scope: AsyncExitStack) -> None:
        subject = subjects.stored_ack(ANY, ANY, ANY, ANY, self._agent, ANY)
        scope.push_async_callback((await self._bus.listen(subject, self._received)).unsubscribe)

    async def store(self, message: Message, write: Write) -> bytes | None:
        """Store a checked message; return the stream's reply, None if the publisher does not wait for it."""
        if ACK not in message.headers:
            stored = await self._bus.request_ack(write.subject, write.data, write.headers, STORE_S)
            return stored.data
        inbox, number, only = _address(message.headers[ACK])
        source = message.subject.split(".")[1]
        token = self._bus.replies.new_token()
        stored = await self._bus.replies.request(
            write.subject,
            write.data,
            headers=write.headers,
            timeout_s=STORE_S,
            until_reconnect=True,
            token=token,
            reply=subjects.stored_ack(source, write.publisher, inbox, number, self._agent, token),
        )
        return None if only else stored.data

    def _received(self, message: Message) -> None:
        self._bus.replies.deliver(message.subject.rpartition(".")[2], message)


def _address(text: str) -> tuple[str, str, bool]:
    """Return the inbox and the number that a publisher names, and whether it ignores any other reply."""
    match text.split("."):
        case [inbox, number, *rest] if rest in ([], ["only"]):
            return check_token(inbox, ACK), check_token(number, ACK), bool(rest)
        case _:
            raise BadInput(ACK, text[:80], "`{inbox}.{number}` or `{inbox}.{number}.only`")
