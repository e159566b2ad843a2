"""Durable publish: a message is stored and acknowledged, or refused with a typed error."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from banksman.bus import errors, names
from banksman.bus.connection import Bus
from banksman.bus.jetstream import next_message
from banksman.contracts import subjects
from banksman.contracts.administration import AuditEntry
from banksman.contracts.errors import BanksmanError, Overloaded, Unavailable
from banksman.contracts.ids import new_id
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.subjects import SERVED
from banksman.contracts.work import ResumeRun, RunSignal, RunWork, StartRun
from banksman.runtime.backoff import Backoff, overlapping, retry

BUDGET_S = 30.0
"""Seconds for which a durable publish is retried. The election of a stream's leader takes up to 8."""
ACK_TIMEOUT_S = 5.0
"""Seconds to wait for the PubAck of one attempt."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
LEADER_TIMEOUT_S = 0.8
"""Seconds to wait for `STREAM.INFO`, which shows whether a stream has a leader, and for a PubAck after it."""
OVERLAPPING = 3
"""Maximum number of attempts that wait for an acknowledgement at the same time."""
DISK_FULL_RETRY_S = 5.0
"""Seconds after which clients are advised to retry while the server cannot store messages."""

_NO_MESSAGE = "no message has this id"

_SLOT_TAKEN = "maximum messages per subject exceeded"
_FULL = re.compile(r"maximum (bytes|messages) exceeded")


async def durable(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    msg_id: str,
    expect_last_subject_seq: int | None = None,
    expect_on: str | None = None,
    headers: Mapping[str, str] | None = None,
    budget_s: float = BUDGET_S,
    attempt_s: float = ACK_TIMEOUT_S,
    overlap_s: float | None = None,
    urgent: bool = False,
) -> PubAck:
    """Store a message in the stream that holds `subject`.

    Retries with the same message id when no acknowledgement arrives, so the message is stored once. At most
    16 durable publishes are in flight on a connection.

    Args:
        subject: A subject of a stream.
        msg_id: The id by which the stream recognises a repeat on this subject, for ten minutes.
        expect_last_subject_seq: The message is stored only if this is the sequence of the last message on the
            subject; 0 expects none, None skips the check.
        expect_on: The subjects of the last message, with wildcards; None for `subject`.
        budget_s: Seconds for which the publish is retried.
        attempt_s: Seconds to wait for the acknowledgement of one attempt.
        overlap_s: Seconds after which the next attempt starts while the earlier ones still wait; None starts
            the next attempt when the previous one has failed. For messages that one of several processes
            relays: a partitioned process does not reply.
        urgent: True skips the limit of publishes in flight: a lease must not expire behind results and
            outputs.

    Raises:
        SlotTaken: The subject is write-once and holds another message.
        WrongLastSequence: The last message is not the expected one. If the acknowledgement of an earlier
            attempt was lost, that attempt may have stored the message before the last one: compare ids.
        Overloaded: Storage is full.
        MessageTooLarge: The message exceeds the limit of the stream or of the server.
        Forbidden: This user may not publish on the subject.
        PublishRefused: The server refused the message for another reason.
        Unavailable: The budget ran out, or earlier if clients wait and the server cannot store. Whether the
            message is stored is unknown.
    """
    sent = {**(headers or {}), names.MSG_ID: message_id(subject, msg_id)}
    if expect_last_subject_seq is not None:
        sent[names.EXPECTED_LAST_SUBJECT_SEQ] = str(expect_last_subject_seq)
    if expect_on is not None:
        sent[names.EXPECTED_LAST_ON] = expect_on
    publication = _Publication(bus, subject, payload, sent, attempt_s, urgent, timeout_s=attempt_s)

    async def until_acknowledged() -> PubAck:
        return await retry(
            publication.attempt,
            again=lambda error: isinstance(error, _RetryableRefusal),
            backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            budget_s=bus.budget(budget_s),
            failure=f"{subject}: not acknowledged",
            public=errors.NO_RESPONSE,
        )

    if overlap_s is None:
        return await until_acknowledged()
    return await overlapping(
        until_acknowledged, after_s=overlap_s, most=OVERLAPPING, on_repeat=publication.repeated
    )


def message_id(subject: str, msg_id: str) -> str:
    """Return the message id as it is sent and stored.

    A stream recognises repeats across all of its subjects. The id contains the subject, and so the tenant:
    otherwise the id of one tenant could make another tenant's message a duplicate, acknowledged and not
    stored.
    """
    return f"{subject}:{msg_id}"


async def schedule(bus: Bus, subject: str, target: str, *, at: datetime, payload: bytes = b"") -> None:
    """Let the stream of `subject` publish a message on its subject `target`; a time in the past is now.

    A message that is scheduled again on `subject` replaces the earlier one.
    """
    # The server requires UTC with a `Z`.
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # A new id each time: otherwise a timer that is cancelled and set again would count as a duplicate and
    # would not be stored.
    headers = {names.SCHEDULE: f"@at {moment}", names.SCHEDULE_TARGET: target}
    await durable(bus, subject, payload, msg_id=new_id("timer-"), headers=headers)


class DiskFull(Unavailable):
    """The server responds and does not store."""

    def __init__(self, subject: str) -> None:
        text = "NATS responds but cannot store messages; its disk may be full"
        super().__init__(f"{subject}: {text}", retry_after_s=DISK_FULL_RETRY_S, public=text)


@dataclass(slots=True)
class _Publication:
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
    """Number of attempts that may have stored the message."""

    def repeated(self) -> None:
        """Count an attempt that starts while an earlier one waits, which may have stored the message."""
        self.tries += 1

    async def attempt(self) -> PubAck:
        """Publish once; raise as `durable`, or `_RetryableRefusal` if the message may be sent again."""
        try:
            try:
                return await self._publish(self.headers, self.timeout_s)
            except errors.WrongLastSequence as refused:
                stored = await self._earlier_attempt(refused)
                if stored is None:
                    raise
                return stored
        except _RetryableRefusal as again:
            self.tries += again.may_be_stored
            # A server with a full disk responds but never sends a PubAck, and retries do not help. A client
            # then gets an error early; other callers use the whole budget. A server that was frozen responds
            # again too, so a short second attempt distinguishes the two cases.
            if isinstance(again.__cause__, errors.TimedOut):
                if self.timeout_s == LEADER_TIMEOUT_S:
                    raise DiskFull(self.subject) from again
                has_leader = await _has_leader(self.bus, self.subject)
                self.timeout_s = LEADER_TIMEOUT_S if has_leader else self.attempt_s
            raise

    async def _publish(self, headers: Mapping[str, str], timeout_s: float) -> PubAck:
        bus = self.bus
        async with bus.measured(), contextlib.nullcontext() if self.urgent else bus.publishes:
            # nats-py buffers what is published while disconnected and sends it after the reconnect, when the
            # caller may have given up. Therefore wait for the connection.
            await bus.wait_connected()
            self._check_disk()
            try:
                message = await bus.store_request(self.subject, self.payload, headers, timeout_s)
                self._check_disk()
            except Unavailable as error:
                if not bus.may_recover(error):
                    raise
                may_be_stored = not isinstance(error, errors.NoResponders)
                raise _RetryableRefusal(str(error), may_be_stored=may_be_stored) from error
        fields = self._parsed(message.data)
        if error := fields.get("error"):
            raise self._refusal(cast(dict[str, Any], error))
        return PubAck(fields["seq"], fields.get("duplicate", False), self.tries)

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(data)
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or not ("error" in reply or "seq" in reply):
            raise errors.PublishRefused(self.subject, 0, f"the reply is not a PubAck: {data[:80]!r}")
        return cast(dict[str, Any], reply)

    def _refusal(self, error: dict[str, Any]) -> Exception:
        subject, code, text = self.subject, error.get("err_code", 0), str(error.get("description", ""))
        # The server has one code for a taken slot, a full stream and a failing disk; only the text differs.
        if code == names.CODE_STORE_FAILED and text == _SLOT_TAKEN:
            return errors.SlotTaken(subject)
        if code in names.CODE_RESOURCES or (code == names.CODE_STORE_FAILED and _FULL.search(text)):
            reason = "storage is full"
            return Overloaded(f"{reason}: {subject}: {text}", retry_after_s=5.0, public=reason)
        if code == names.CODE_WRONG_LAST_SEQUENCE:
            return errors.WrongLastSequence(
                subject, int(text.rpartition(" ")[2]) if text[-1:].isdigit() else 0
            )
        if code == names.CODE_MESSAGE_TOO_LARGE:
            return errors.MessageTooLarge(subject, len(self.payload), self.bus.max_payload)
        # A cluster refuses a message while its servers replicate another one on the subject or with the same
        # id, which may be an earlier attempt of this one. The outcome is known only when that one is stored.
        # With 503 the JetStream API is temporarily unavailable, for example during an election.
        if code in (names.CODE_WRITE_UNDER_WAY, names.CODE_DUPLICATE_UNDER_WAY) or error.get("code") == 503:
            return _RetryableRefusal(f"{text} ({code})")
        return errors.PublishRefused(subject, code, text)

    def _check_disk(self) -> None:
        """Raise `Unavailable` if the server cannot store and a client waits; other callers wait for space."""
        if self.bus.serves_clients and self.bus.disk.failing:
            raise DiskFull(self.subject)

    async def _earlier_attempt(self, refused: errors.WrongLastSequence) -> PubAck | None:
        """Return the acknowledgement of an earlier attempt if it stored the last message of the subject.

        A single server compares sequences before it recognises a repeat, so it refuses the repeat of a
        message that it has stored. It recognises repeats before it compares message ids: with an id that no
        message has, a repeat is acknowledged, and any other message is refused. Servers of a cluster
        recognise repeats first.
        """
        if self.tries == 1 or self.bus.settings.replicas != 1:
            return None
        conditions = {
            names.EXPECTED_LAST_SUBJECT_SEQ: str(refused.found),
            names.EXPECTED_LAST_MSG_ID: _NO_MESSAGE,
        }
        try:
            stored = await self._publish({**self.headers, **conditions}, self.attempt_s)
        except (errors.WrongLastSequence, errors.PublishRefused):
            return None
        return stored if stored.stream_seq == refused.found else None


async def _has_leader(bus: Bus, subject: str) -> bool:
    """Return whether the stream has a leader although it did not acknowledge; False if no client waits.

    During an election the stream has no leader, and `STREAM.INFO` gets no reply.
    """
    if not bus.serves_clients:
        return False
    try:
        reply = await bus.replies.request(
            names.api("STREAM.INFO", names.stream_of(subject)), b"", timeout_s=LEADER_TIMEOUT_S
        )
    except BanksmanError:
        return False
    return b'"state"' in reply.data


_RUN_MESSAGE: TypeAdapter[RunWork | RunSignal] = TypeAdapter(RunWork | RunSignal)


def is_behind(headers: Mapping[str, str]) -> bool:
    """Return whether something else of its conversation waited when the start of a run was stored."""
    return names.EXPECTED_LAST_ON not in headers and ":start:" in headers.get(names.MSG_ID, "")


class RunQueue:
    """Publishes work for agents and for the workflows service; raises what `durable` raises."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(
        self, work: StartRun | ResumeRun, *, unless_alone: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Store a start under the message id `start:{run}`, or a resume under `resume:{cause}`.

        The resume of a workflow's run goes to the workflows service. `unless_alone` is called before a start
        is stored behind other messages of its conversation, and may refuse it.
        """
        if isinstance(work, StartRun):
            return await self._start(work, unless_alone)
        if work.workflow is not None:
            subject = subjects.workflow_run(SERVED, work.tenant, work.conversation_id)
        else:
            subject = subjects.run_work(work.tenant, work.conversation_id)
        await durable(self._bus, subject, encoded(work), msg_id=f"resume:{work.cause}")

    async def _start(self, work: StartRun, unless_alone: Callable[[], Awaitable[None]] | None) -> None:
        to, msg_id = (work.tenant, work.conversation_id), f"start:{work.run_id}"
        store = partial(durable, self._bus, subjects.run_work(*to), encoded(work), msg_id=msg_id)
        try:
            # The stored condition shows agents that nothing else of the conversation waited: `is_behind`.
            await store(expect_last_subject_seq=0, expect_on=subjects.run_messages(*to))
        except errors.WrongLastSequence:
            if unless_alone is not None:
                await unless_alone()
            await store()

    async def next(
        self, tenant: str, conversation_id: str, *, after: int
    ) -> tuple[int, RunWork | RunSignal | None] | None:
        """Return the first unacknowledged message of a conversation after a sequence, from the leader.

        Returns its sequence and its body; None as the body of a message whose own handler dead-letters it.
        """
        to = (tenant, conversation_id)
        found = await next_message(self._bus, names.RUNS, subjects.run_messages(*to), after=after)
        if found is None:
            return None
        try:
            body = _RUN_MESSAGE.validate_json(found.data)
        except ValidationError:
            return found.stream_seq, None
        return found.stream_seq, body if (body.tenant, body.conversation_id) == to else None

    async def signal(self, signal: RunSignal, request_id: str) -> None:
        """Store a signal under the message id `signal:{request}`, and wake the owner of the run."""
        await self.stored_signal(signal.tenant, signal.conversation_id, encoded(signal), request_id)

    async def stored_signal(self, tenant: str, conversation_id: str, signal: bytes, request_id: str) -> None:
        """Store the JSON of a signal; as `signal`."""
        subject = subjects.run_signal(tenant, conversation_id)
        await durable(self._bus, subject, signal, msg_id=f"signal:{request_id}")
        await self.wake_owner(tenant, conversation_id)

    async def start_workflow(self, work: StartWorkflow) -> None:
        """Store the start of a workflow under the message id `workflow:{run}`."""
        subject = subjects.workflow_run(SERVED, work.tenant, work.conversation_id)
        await durable(self._bus, subject, encoded(work), msg_id=f"workflow:{work.run_id}")

    async def wake_owner(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner of a run. The message may be lost: the owner also reads the log after its wait."""
        await self._bus.publish(subjects.cancel_hint(tenant, conversation_id), b"")


def encoded(value: BaseModel) -> bytes:
    return value.model_dump_json(by_alias=True).encode()


@dataclass(frozen=True, slots=True)
class PubAck:
    """Acknowledgement that the server stored the message."""

    stream_seq: int
    duplicate: bool
    """True when a message with this id was stored before; `stream_seq` is the sequence of that message."""
    tries: int = 1
    """Number of attempts that may have stored the message. A duplicate after more than one attempt is the
    message of an earlier attempt."""


class _RetryableRefusal(Exception):
    """The outcome is unknown, or the stream cannot store the message now."""

    def __init__(self, reason: str, *, may_be_stored: bool = False) -> None:
        self.may_be_stored = may_be_stored
        super().__init__(reason)


async def record_action(bus: Bus, entry: AuditEntry, *, msg_id: str) -> None:
    """Store an entry. Safe to repeat with the same message id."""
    subject = subjects.audit(entry.tenant, *entry.action.split("."))
    await durable(bus, subject, entry.model_dump_json().encode(), msg_id=msg_id)
