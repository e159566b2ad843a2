"""Stores what runners and tool servers publish, after a check.

The broker maps their starts, results and leases to the relay's subjects, because the users of other accounts
must not write to shared streams: the server checks neither bodies nor headers, so such a user could take the
slot of any call, or fill a stream. A start or a result is stored only with the ticket of its call. A tenant's
own tool servers may lack one, as those of older versions do; what they store is limited.

The replies are those of JetStream, unchanged, so the publisher cannot distinguish the relay from the stream.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from pydantic import BaseModel, ValidationError

from banksman.agent.tenant_redaction import TenantRedaction
from banksman.agent.tenant_room import LIMITS, RelayRoom, RoomLimits
from banksman.bus.call_tickets import CallTickets
from banksman.bus.connection import Bus, Subscription
from banksman.bus.errors import MessageTooLarge, NoResponders
from banksman.bus.intake import Intake
from banksman.bus.leases import instance_key
from banksman.bus.messages import Message
from banksman.bus.names import (
    AGENTS,
    CODE_MESSAGE_TOO_LARGE,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SUBJECT_SEQ,
    KV_OPERATION,
    MSG_ID,
    RUNNERS,
    TTL,
    kv_subject,
)
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted, LateResult, RunnerLease
from banksman.contracts.errors import BadInput, BanksmanError, Forbidden, Overloaded, Refused, Unavailable
from banksman.contracts.ids import check_token
from banksman.contracts.subjects import RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.runtime.rate_limit import TooManyRequests

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

TENANT_RATE: Final = 500.0
"""Messages a second of one tenant that an agent relays; further ones are refused."""
MAX_STARTED_BYTES: Final = 4 * 1024
MAX_RESULT_BYTES: Final = 320 * 1024
"""Bytes of a result with its fields. An event of a conversation has at most 256 KiB."""
MAX_LEASE_BYTES: Final = 2 * 1024
"""Bytes of a lease. With its headers it fits into the limit of the bucket."""
STORE_S: Final = 4.0
"""Seconds to wait for JetStream; less than the publisher waits for the reply."""
_MARKER_TTL = "1m"
_CODE_RESOURCES = 10047
_MAX_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class _Write:
    """A checked message as it is stored."""

    subject: str
    data: bytes
    headers: Mapping[str, str]


class Relay:
    """Serves the relay; as a context manager it does so while the block runs."""

    def __init__(
        self, bus: Bus, tickets: CallTickets, redaction: TenantRedaction, *, limits: RoomLimits = LIMITS
    ) -> None:
        self._bus = bus
        self._tickets = tickets
        self._redaction = redaction
        self._runners = Intake(bus, None, refusal=_refusal)
        self._tenants = Intake(bus, TENANT_RATE, tenant_token=3, refusal=_refusal)
        self._room = RelayRoom(bus, limits)
        self._subscriptions: tuple[Subscription, ...] = ()

    async def __aenter__(self) -> Self:
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

    async def _from_run(self, message: Message) -> None:
        # Checked before it waits for its turn: messages without a ticket take no place in the queue.
        try:
            write = self._checked(message, tenant=None)
        except BanksmanError as error:
            await self._reply(message, _refusal(error))
            return
        await self._runners(message.subject, message.reply, partial(self._handle, message, write))

    async def _from_tenant(self, message: Message) -> None:
        await self._tenants(message.subject, message.reply, partial(self._handle, message))

    async def _handle(self, message: Message, write: _Write | None = None) -> None:
        reconnects = self._bus.stats.reconnects
        reply: bytes | None
        try:
            reply = await self._store(message, write)
        except BanksmanError as error:
            reply = _refusal(error)
        except Exception as error:
            logger.exception("%s: the relay failed", message.subject)
            reply = _refusal(Unavailable(f"the relay failed: {type(error).__name__}"))
        # The server permits the reply on the connection that received the request only.
        if reply is not None and self._bus.stats.reconnects == reconnects:
            await self._reply(message, reply)

    async def _store(self, message: Message, write: _Write | None) -> bytes | None:
        """Store a message and return JetStream's reply; None if its outcome is unknown.

        The publisher then repeats the message with the same id after its own timeout, and the stream
        recognises it. After an error reply it would take the repeat for a message of another process.
        """
        if write is None:
            write = self._checked(message, tenant=message.subject.split(".")[3])
        if write.subject != subjects.late_result():
            await self._check_room(message, write)
        try:
            stored = await self._bus.replies.request(
                write.subject, write.data, headers=write.headers, timeout_s=STORE_S, until_reconnect=True
            )
        except NoResponders:
            raise
        except Unavailable:
            return None
        return stored.data

    def _checked(self, message: Message, *, tenant: str | None) -> _Write:
        """Check a message and return what is stored; `tenant` is None for one of account RUN.

        Raises:
            BadInput, MessageTooLarge: The message breaks a rule.
            Forbidden: It has no ticket, or the ticket of another call or process.
        """
        match message.subject.split("."):
            case [_, _, "started", of_tenant, attempt]:
                return self._started(message, of_tenant, attempt, needs_ticket=tenant is None)
            case [_, _, "result", of_tenant, attempt]:
                return self._finished(message, of_tenant, attempt, of_platform=tenant is None)
            case [_, _, "late"]:
                return self._late(message)
            case [_, _, "lease", *key]:
                server, epoch = key[-2:]
                return _lease(message, server, epoch, tenant)
            case _:
                raise BadInput("subject", message.subject, "a subject of the relay")

    def _started(self, message: Message, tenant: str, attempt: str, *, needs_ticket: bool) -> _Write:
        started = _decoded(CallStarted, message, MAX_STARTED_BYTES)
        if started.void or started.attempt != attempt:
            raise BadInput("attempt", started.attempt, f"the start of {attempt}")
        self._check_ticket(started.ticket, tenant, attempt, started.runner, needs_ticket=needs_ticket)
        return _slot(message, subjects.tool_started(tenant, attempt))

    def _finished(self, message: Message, tenant: str, attempt: str, *, of_platform: bool) -> _Write:
        finished = _decoded(CallFinished, message, MAX_RESULT_BYTES)
        if finished.attempt != attempt:
            raise BadInput("attempt", finished.attempt, f"the result of {attempt}")
        self._check_ticket(finished.ticket, tenant, attempt, finished.result.runner, needs_ticket=of_platform)
        write = _slot(message, subjects.tool_result(tenant, attempt))
        # Only a tenant's own servers receive its secrets; runners remove those of MCP servers themselves.
        return write if of_platform else replace(write, data=self._redaction.of(tenant, finished, write.data))

    def _late(self, message: Message) -> _Write:
        late = _decoded(LateResult, message, MAX_RESULT_BYTES)
        self._check_ticket(late.ticket, late.tenant, late.attempt, late.runner, needs_ticket=True)
        # One id for each ticket: its holder can repeat the note, and not add others.
        msg_id = f"{subjects.late_result()}:{late.tenant}:{late.attempt}:{late.runner}"
        return _Write(subjects.late_result(), message.data, {MSG_ID: msg_id})

    def _check_ticket(
        self, ticket: str | None, tenant: str, attempt: str, named: str | None, *, needs_ticket: bool
    ) -> None:
        if ticket is None:
            if needs_ticket:
                raise Forbidden(
                    f"{attempt}: the message has no ticket of the call. The runner or tool server has an "
                    "older version than the permissions of the broker: upgrade it"
                )
            return
        holder = self._tickets.holder(ticket, tenant, attempt)
        # The result of a call that could not be executed names no runner.
        if holder is None or named not in (holder, None):
            raise Forbidden(f"{attempt}: the ticket is not that of this call and {named}")

    async def _check_room(self, message: Message, write: _Write) -> None:
        """Check that the messages of a tenant, or of one tool server, leave room to others.

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


def _slot(message: Message, subject: str) -> _Write:
    return _Write(subject, message.data, {MSG_ID: _message_id(message, subject)})


def _lease(message: Message, server: str, epoch: str, tenant: str | None) -> _Write:
    """Return the lease of a process, or the marker that ends it."""
    if not epoch.isdecimal():
        raise BadInput("epoch", epoch, "a number")
    subject = kv_subject(RUNNERS, instance_key(server, int(epoch), tenant))
    headers = {MSG_ID: _message_id(message, subject)}
    expected = message.headers.get(EXPECTED_LAST_SUBJECT_SEQ)
    if expected is not None:
        if not expected.isdecimal():
            raise BadInput(EXPECTED_LAST_SUBJECT_SEQ, expected, "a number")
        headers[EXPECTED_LAST_SUBJECT_SEQ] = expected
    if EXPECTED_LAST_MSG_ID in message.headers:
        # A holder whose acknowledgement was lost asks by it whether its renewal is stored, see `durable`.
        headers[EXPECTED_LAST_MSG_ID] = message.headers[EXPECTED_LAST_MSG_ID][:_MAX_ID_CHARS]
    if KV_OPERATION in message.headers:
        return _Write(subject, b"", {**headers, KV_OPERATION: "DEL", TTL: _MARKER_TTL})
    _decoded(RunnerLease, message, MAX_LEASE_BYTES)
    return _Write(subject, message.data, headers)


def _message_id(message: Message, subject: str) -> str:
    """Return the id by which the stream recognises a repeat: one that no message on another subject has."""
    msg_id = message.headers.get(MSG_ID, "")
    if not msg_id.startswith(f"{subject}:") or len(msg_id) > _MAX_ID_CHARS:
        raise BadInput(MSG_ID, msg_id[:_MAX_ID_CHARS], f"{subject!r}, `:` and an id")
    for token in subject.split(".")[-2:]:
        check_token(token, "subject")
    return msg_id


def _decoded(model: type[M], message: Message, most_bytes: int) -> M:
    if len(message.data) > most_bytes:
        raise MessageTooLarge(message.subject, len(message.data), most_bytes)
    try:
        return model.model_validate_json(message.data)
    except ValidationError as error:
        raise BadInput("body", None, f"a {model.__name__}: {error.error_count()} fields are wrong") from error


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
