"""Checks of the messages that runners and tool servers publish, and the removal of secrets from results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from pydantic import BaseModel, ValidationError

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.errors import MessageTooLarge
from banksman.bus.messages import Message
from banksman.bus.secrets import CallTickets, SecretBox
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.leases import instance_key
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted, LateResult, RunnerLease
from banksman.contracts.errors import BadInput, Forbidden
from banksman.contracts.ids import check_token
from banksman.contracts.json_text import FINITE, check_values, has_finite_numbers
from banksman.contracts.tools import StoredSecret, failed
from banksman.contracts.wire import JsonObject
from banksman.runtime.redaction import Redaction
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

MAX_STARTED_BYTES: Final = 4 * 1024
MAX_RESULT_BYTES: Final = 320 * 1024
"""Bytes of a result with its fields. An event of a conversation has at most 256 KiB."""
MAX_LEASE_BYTES: Final = 2 * 1024
"""Bytes of a lease. With its headers it fits into the limit of the bucket."""
_MARKER_TTL = "1m"
_MAX_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class Write:
    """A checked message as it is stored."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    publisher: str
    """The authenticated publisher: the tenant of the account, or in account RUN the holder of the ticket."""


@dataclass(frozen=True, slots=True)
class RelayChecks:
    tickets: CallTickets
    redaction: TenantRedaction

    def checked(self, message: Message, *, tenant: str | None) -> Write:
        """Check a message and return the write to store; `tenant` is None for a message of account RUN.

        Raises:
            BadInput, MessageTooLarge: The message breaks a rule.
            Forbidden: The message has no ticket, or the ticket of another call or process.
        """
        match message.subject.split("."):
            case [_, _, "started", of_tenant, attempt]:
                return self._started(message, of_tenant, attempt, of_platform=tenant is None)
            case [_, _, "result", of_tenant, attempt]:
                return self._finished(message, of_tenant, attempt, of_platform=tenant is None)
            case [_, _, "late"]:
                return self._late(message)
            case [_, _, "lease", *key]:
                server, epoch = key[-2:]
                return _lease(message, server, epoch, tenant)
            case _:
                raise BadInput("subject", message.subject, "a subject of the relay")

    def _started(self, message: Message, tenant: str, attempt: str, *, of_platform: bool) -> Write:
        started = _decoded(CallStarted, message, MAX_STARTED_BYTES)
        if started.void or started.attempt != attempt:
            raise BadInput("attempt", started.attempt, f"the start of {attempt}")
        publisher = self._publisher(started.ticket, tenant, attempt, started.runner, of_platform)
        return _slot(message, subjects.tool_started(tenant, attempt), publisher)

    def _finished(self, message: Message, tenant: str, attempt: str, *, of_platform: bool) -> Write:
        finished = _decoded(CallFinished, message, MAX_RESULT_BYTES)
        if finished.attempt != attempt:
            raise BadInput("attempt", finished.attempt, f"the result of {attempt}")
        named = finished.result.runner
        publisher = self._publisher(finished.ticket, tenant, attempt, named, of_platform)
        write = _slot(message, subjects.tool_result(tenant, attempt), publisher)
        if not has_finite_numbers(finished.result.content):
            result = failed(
                finished.result.tool_call_id, "tool_error", f"the result cannot be stored: {FINITE}"
            )
            finished = finished.model_copy(update={"result": result.model_copy(update={"runner": named})})
            write = replace(write, data=finished.model_dump_json().encode())
        # Only a tenant's own servers receive its secrets; runners remove those of MCP servers themselves.
        return write if of_platform else replace(write, data=self.redaction.of(tenant, finished, write.data))

    def _late(self, message: Message) -> Write:
        late = _decoded(LateResult, message, MAX_RESULT_BYTES)
        holder = self._publisher(late.ticket, late.tenant, late.attempt, late.runner, of_platform=True)
        # One id for each ticket: the holder of a ticket can repeat the note but cannot add another one.
        msg_id = f"{subjects.late_result()}:{late.tenant}:{late.attempt}:{late.runner}"
        return Write(subjects.late_result(), message.data, {names.MSG_ID: msg_id}, holder)

    def _publisher(
        self, ticket: str | None, tenant: str, attempt: str, named: str | None, of_platform: bool
    ) -> str:
        """Return the holder of a ticket, or the tenant, whose own servers may send a message without one."""
        if ticket is None and of_platform:
            raise Forbidden(f"{attempt}: the message has no ticket of the call")
        if ticket is None:
            return tenant
        holder = self.tickets.holder(ticket, tenant, attempt)
        # The result of a call that could not be executed names no runner.
        if holder is None or named not in (holder, None):
            raise Forbidden(f"{attempt}: the ticket is not that of this call and {named}")
        return holder if of_platform else tenant


def _slot(message: Message, subject: str, publisher: str) -> Write:
    return Write(subject, message.data, {names.MSG_ID: _message_id(message, subject)}, publisher)


def _lease(message: Message, server: str, epoch: str, tenant: str | None) -> Write:
    """Return the lease of a process, or the marker that ends it."""
    if not epoch.isdecimal():
        raise BadInput("epoch", epoch, "a number")
    subject = names.kv_subject(names.RUNNERS, instance_key(server, int(epoch), tenant))
    headers = {names.MSG_ID: _message_id(message, subject)}
    expected = message.headers.get(names.EXPECTED_LAST_SUBJECT_SEQ)
    if expected is not None:
        if not expected.isdecimal():
            raise BadInput(names.EXPECTED_LAST_SUBJECT_SEQ, expected, "a number")
        headers[names.EXPECTED_LAST_SUBJECT_SEQ] = expected
    if names.EXPECTED_LAST_MSG_ID in message.headers:
        # A holder whose acknowledgement was lost checks by this header whether its renewal is stored
        # (`durable`).
        headers[names.EXPECTED_LAST_MSG_ID] = message.headers[names.EXPECTED_LAST_MSG_ID][:_MAX_ID_CHARS]
    # In account RUN the permissions of a tool server contain its id.
    publisher = server if tenant is None else tenant
    if names.KV_OPERATION in message.headers:
        return Write(subject, b"", {**headers, names.KV_OPERATION: "DEL", names.TTL: _MARKER_TTL}, publisher)
    _decoded(RunnerLease, message, MAX_LEASE_BYTES)
    return Write(subject, message.data, headers, publisher)


def _message_id(message: Message, subject: str) -> str:
    """Return the id by which the stream recognises a repeat. It begins with the subject."""
    msg_id = message.headers.get(names.MSG_ID, "")
    if not msg_id.startswith(f"{subject}:") or len(msg_id) > _MAX_ID_CHARS:
        raise BadInput(names.MSG_ID, msg_id[:_MAX_ID_CHARS], f"{subject!r}, `:` and an id")
    for token in subject.split(".")[-2:]:
        check_token(token, "subject")
    return msg_id


def _decoded(model: type[M], message: Message, most_bytes: int) -> M:
    if len(message.data) > most_bytes:
        raise MessageTooLarge(message.subject, len(message.data), most_bytes)
    check_values(message.data)
    try:
        return model.model_validate_json(message.data)
    except ValidationError as error:
        raise BadInput("body", None, f"a {model.__name__}: {error.error_count()} fields are wrong") from error


class TenantRedaction(Scoped):
    """Removes the secrets of tenants from the results of their tool servers.

    The Python SDK removes them too. Servers in other languages may not, and results reach models, logs and
    clients. As a context manager it follows the changes of secrets.
    """

    def __init__(self, bus: Bus, signing_key: bytes) -> None:
        self._box = SecretBox(signing_key)
        bucket = Bucket(bus, names.TENANT_SECRETS, StoredSecret)
        self._stored = BucketView(bucket, on_change=self._changed)
        self._by_tenant: dict[str, Redaction] = {}
        """Redactions by tenant, created when first needed after a change of secrets."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._stored)

    def of(self, tenant: str, finished: CallFinished, data: bytes) -> bytes:
        """Return the encoded result of a call without secrets; unchanged `data` if it contains none."""
        redaction = self._of(tenant)
        text = data.decode()
        if redaction.of(text) == text:
            return data
        logger.warning("%s: the tool server returned a secret, which was removed", finished.attempt)
        content = cast(JsonObject, redaction.of_content(finished.result.content))
        result = finished.result.model_copy(update={"content": content})
        return finished.model_copy(update={"result": result}).model_dump_json().encode()

    def _of(self, tenant: str) -> Redaction:
        found = self._by_tenant.get(tenant)
        if found is None:
            entries = self._stored.entries(f"{tenant}.")
            opened = (self._box.open(entry.value.sealed, entry.key) for entry in entries)
            found = self._by_tenant[tenant] = Redaction(value for value in opened if value is not None)
        return found

    def _changed(self, key: str, entry: Entry[StoredSecret] | None) -> None:
        self._by_tenant.pop(key.partition(".")[0], None)
