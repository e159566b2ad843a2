"""Durable publish: a message is stored and acknowledged, or refused with a typed error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from banksman.bus.connection import Bus
from banksman.bus.errors import NO_RESPONSE
from banksman.bus.names import EXPECTED_LAST_SUBJECT_SEQ, MSG_ID, SCHEDULE, SCHEDULE_TARGET
from banksman.bus.pub_acks import PubAck, RetryableRefusal
from banksman.bus.publication import Publication, first_result
from banksman.contracts import subjects
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.subjects import SERVED
from banksman.contracts.work import ResumeRun, RunSignal, StartRun
from banksman.runtime.backoff import Backoff, retry

BUDGET_S = 30.0
"""Seconds for which a durable publish is retried. The election of a stream's leader takes up to 8."""
ACK_TIMEOUT_S = 5.0
"""Seconds to wait for the PubAck of one attempt."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


async def durable(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    msg_id: str,
    expect_last_subject_seq: int | None = None,
    headers: Mapping[str, str] | None = None,
    schedule_at: datetime | None = None,
    schedule_target: str | None = None,
    budget_s: float = BUDGET_S,
    attempt_s: float = ACK_TIMEOUT_S,
    overlap_s: float | None = None,
    urgent: bool = False,
) -> PubAck:
    """Store a message in the stream that holds `subject`.

    Retries with the same message id when no acknowledgement arrives, so the message is stored once. At most
    16 durable publishes are in flight on a connection.

    Args:
        bus: The connection.
        subject: A subject of a stream.
        payload: The message.
        msg_id: The id by which the stream recognises a repeat on this subject, for ten minutes.
        expect_last_subject_seq: The message is stored only if this is the sequence of the last message on the
            subject; 0 expects none, None skips the check.
        headers: Additional headers.
        schedule_at: The time at which a stream that allows schedules publishes it on `schedule_target`.
        schedule_target: A subject of the same stream.
        budget_s: Seconds for which the publish is retried.
        attempt_s: Seconds to wait for the acknowledgement of one attempt.
        overlap_s: Seconds after which the next attempt starts while the earlier ones still wait; None starts
            it when they have failed. For messages that one of several processes relays: a partitioned one
            does not reply.
        urgent: True does not wait for other publishes: a lease must not expire behind results and outputs.

    Raises:
        SlotTaken: The subject is write-once and holds another message.
        WrongLastSequence: The last message is not the expected one. If the acknowledgement of an earlier
            attempt was lost, that one may be stored before the last message: compare ids.
        Overloaded: Storage is full.
        MessageTooLarge: The message exceeds the limit of the stream or of the server.
        Forbidden: This user may not publish on the subject.
        PublishRefused: The server refused the message for another reason.
        Unavailable: The budget ran out, or clients wait and the server cannot store (then earlier). Whether
            the message is stored is unknown.
    """
    sent = _headers(
        message_id(subject, msg_id), expect_last_subject_seq, headers, schedule_at, schedule_target
    )
    publication = Publication(bus, subject, payload, sent, attempt_s, urgent, timeout_s=attempt_s)

    async def until_acknowledged() -> PubAck:
        return await retry(
            publication.attempt,
            again=lambda error: isinstance(error, RetryableRefusal),
            backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            budget_s=bus.budget(budget_s),
            failure=f"{subject}: not acknowledged",
            public=NO_RESPONSE,
        )

    if overlap_s is None:
        return await until_acknowledged()
    return await first_result(until_acknowledged, overlap_s, publication.repeated)


def message_id(subject: str, msg_id: str) -> str:
    """Return the message id as it is sent and stored.

    A stream recognises repeats across all of its subjects. The id contains the subject, and so the tenant:
    otherwise the id of one tenant could make another tenant's message a duplicate, acknowledged and not
    stored.
    """
    return f"{subject}:{msg_id}"


def _headers(
    msg_id: str,
    expect_last_subject_seq: int | None,
    more: Mapping[str, str] | None,
    schedule_at: datetime | None,
    schedule_target: str | None,
) -> dict[str, str]:
    headers = {**(more or {}), MSG_ID: msg_id}
    if expect_last_subject_seq is not None:
        headers[EXPECTED_LAST_SUBJECT_SEQ] = str(expect_last_subject_seq)
    if schedule_at is not None and schedule_target is not None:
        # The server requires UTC with a `Z`.
        moment = schedule_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        headers |= {SCHEDULE: f"@at {moment}", SCHEDULE_TARGET: schedule_target}
    return headers


class RunQueue:
    """Publishes work for agents and for the workflows service."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a start under the message id `start:{run}`, or a resume under `resume:{cause}`.

        The resume of a workflow's run goes to the workflows service.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        msg_id = f"start:{work.run_id}" if isinstance(work, StartRun) else f"resume:{work.cause}"
        if isinstance(work, ResumeRun) and work.workflow is not None:
            subject = subjects.workflow_run(SERVED, work.tenant, work.conversation_id)
        else:
            subject = subjects.run_work(work.tenant, work.conversation_id)
        await durable(self._bus, subject, _encoded(work), msg_id=msg_id)

    async def signal(self, signal: RunSignal, request_id: str) -> None:
        """Store a signal under the message id `signal:{request}`, and wake the owner of the run.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        subject = subjects.run_signal(signal.tenant, signal.conversation_id)
        await durable(self._bus, subject, _encoded(signal), msg_id=f"signal:{request_id}")
        await self.wake_owner(signal.tenant, signal.conversation_id)

    async def start_workflow(self, work: StartWorkflow) -> None:
        """Store the start of a workflow under the message id `workflow:{run}`.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        subject = subjects.workflow_run(SERVED, work.tenant, work.conversation_id)
        await durable(self._bus, subject, _encoded(work), msg_id=f"workflow:{work.run_id}")

    async def wake_owner(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner of a run.

        The message may be lost: the owner also reads the log when its wait times out.
        """
        await self._bus.publish(subjects.cancel_hint(tenant, conversation_id), b"")


def _encoded(work: StartRun | ResumeRun | RunSignal | StartWorkflow) -> bytes:
    return work.model_dump_json(by_alias=True).encode()
