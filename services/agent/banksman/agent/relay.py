"""Stores messages of runners and tool servers after a check.

The broker maps their starts, results and leases to the relay's subjects, because the users of other accounts
must not write to shared streams: the server checks neither bodies nor headers, so such a user could take the
slot of any call, or fill a stream. A start or a result is stored only with the ticket of its call. A tenant's
own tool servers of older versions have no tickets; the number of their messages is limited.

The replies are those of JetStream, unchanged, so the publisher cannot distinguish the relay from the stream.
A publisher that receives them directly gets only refusals from here (`acknowledged_writes`).
"""

from __future__ import annotations

import json
import logging
from functools import partial
from types import TracebackType
from typing import Final, Self

from banksman.agent.acknowledged_writes import AcknowledgedWrites
from banksman.agent.relayed_messages import RelayChecks, Write
from banksman.agent.tenant_redaction import TenantRedaction
from banksman.agent.tenant_room import LIMITS, RelayRoom, RoomLimits
from banksman.bus.connection import Bus, BusSubscription
from banksman.bus.control_plane.intake import Intake
from banksman.bus.errors import MessageTooLarge, NoResponders
from banksman.bus.messages import Message
from banksman.bus.names import AGENTS, CODE_MESSAGE_TOO_LARGE, EXPECTED_LAST_SUBJECT_SEQ
from banksman.bus.secrets.call_tickets import CallTickets
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Forbidden, Overloaded, Refused, Unavailable
from banksman.contracts.subjects import RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.runtime.rate_limit import TooManyRequests

logger = logging.getLogger(__name__)

TENANT_RATE: Final = 2_000.0
"""Messages per second of one tenant that an agent relays; further ones are refused. All runs that an agent
can drive need fewer."""
_CODE_RESOURCES = 10047


class Relay:
    """Serves the relay; as a context manager it does so while the block runs."""

    def __init__(
        self, bus: Bus, tickets: CallTickets, redaction: TenantRedaction, *, limits: RoomLimits = LIMITS
    ) -> None:
        self._bus = bus
        self._checks = RelayChecks(tickets, redaction)
        self._writes = AcknowledgedWrites(bus)
        self._runners = Intake(bus, None, refusal=_refusal)
        self._tenants = Intake(bus, TENANT_RATE, tenant_token=3, refusal=_refusal)
        self._room = RelayRoom(bus, limits)
        self._subscriptions: tuple[BusSubscription, ...] = ()

    async def __aenter__(self) -> Self:
        await self._writes.__aenter__()
        self._subscriptions = (
            await self._bus.subscribe(subjects.all_of("relay", RUN_ACCOUNT), self._from_run, AGENTS),
            await self._bus.subscribe(subjects.all_of("relay", TENANT_ACCOUNT), self._from_tenant, AGENTS),
        )
        await self._bus.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        await self._runners.__aexit__()
        await self._tenants.__aexit__()
        await self._writes.__aexit__(kind, error, trace)

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
        id after its own timeout, and the stream recognises the repeat. After an error reply, the publisher
        would take a stored message for that of another process.
        """
        if write is None:
            write = self._checks.checked(message, tenant=message.subject.split(".")[3])
        if write.subject != subjects.late_result():
            await self._check_room(message, write)
        try:
            return await self._writes.store(message, write)
        except NoResponders:
            raise
        except Unavailable:
            return None

    async def _check_room(self, message: Message, write: Write) -> None:
        """Check that the messages of a tenant, or of one tool server, leave room for others.

        Raises:
            Overloaded: There is no room.
            Unavailable: The server did not respond.
        """
        _, source, kind, owner, *_ = message.subject.split(".")
        if kind == "lease":
            if write.headers.get(EXPECTED_LAST_SUBJECT_SEQ, "0") == "0":
                await self._room.take_lease(owner, of_tenant=source == TENANT_ACCOUNT)
        elif source == TENANT_ACCOUNT:
            await self._room.take_slot(owner, kind, len(write.data))

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
