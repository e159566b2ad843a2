"""Claiming a run: from a delivered work message to its ownership.

A delivery is only a hint. The log decides what a message means (`delivered_work`), and the claim is a commit
by compare-and-set, so any number of agents may handle the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from banksman.contracts.events import Commit, Owner
from banksman.contracts.work import RunWork, StartRun
from banksman.runs.approval.requests import publish_requests
from banksman.runs.arrivals import batch, queued, started
from banksman.runs.handlers import earlier_first
from banksman.runs.owner import Draft, Extent, Ownership, Part, append_fitting, append_parts, part
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation
from banksman.runs.steps import next_in_queue


@dataclass(frozen=True, slots=True)
class Claim:
    """Become the owner; the claim holds this start of the next queued run (none for an open run)."""

    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeIn:
    """The run is new: record it after those that were stored before it, and claim one if none is open."""

    start: StartRun


@dataclass(frozen=True, slots=True)
class RepublishApproval:
    """The run is parked: publish its approval request again, which a crash may have prevented. Then ack."""


@dataclass(frozen=True, slots=True)
class AckOnly:
    """The log shows that this message has no further effect."""


WorkStep = Claim | TakeIn | RepublishApproval | AckOnly


async def accept(
    ports: Ports,
    work: RunWork,
    work_seq: int,
    *,
    alone: bool = False,
    start_next: bool = True,
    on_commit: Callable[[], None] | None = None,
) -> Ownership | None:
    """Handle a delivered work message up to the claim; safe on every redelivery.

    `alone` says that nothing else of the conversation waited when the message was stored. `on_commit` runs
    after each commit of the owner, except its claim.

    Returns the claimed run, which may be that of an earlier message, or None if there is nothing to drive and
    the message can be acked.
    """
    # A claim needs no read: the append is refused if the log has commits that this process does not know. Any
    # other step reads the log first. So does a claim by a process that knows no commit of the log: it would
    # mostly be refused, unless the message is the first of its conversation.
    is_first = isinstance(work, StartRun) and work.first
    starts = None if isinstance(work, StartRun) and not alone else ()
    state, is_current = ports.log.cached(work.tenant, work.conversation_id), False
    while True:
        may_append = is_current or is_first or state.stream_seq > 0
        match delivered_work(state, work, work_seq):
            case TakeIn(start) if may_append and starts is None:
                starts = await earlier_first(ports, start, work_seq)
                state, is_current = ports.log.cached(work.tenant, work.conversation_id), False
                continue
            case TakeIn(start) if may_append and starts is not None:
                new = batch(state, (*starts, start))
                owned = await _take_in(ports, state, new, start, work_seq, start_next)
            case Claim(parts) if may_append:
                owned = await _claim(ports, state, parts, work_seq, start_next)
            case AckOnly() if is_current:
                return None
            case RepublishApproval() if is_current:
                await publish_requests(ports, state)
                return None
            case _:
                owned = None
        if owned is not None:
            owned.on_commit = on_commit
            return owned if owned.holds else None
        # Read again in each round: a commit that came first may have changed what the message means.
        state, is_current = await ports.log.read(work.tenant, work.conversation_id), True


def delivered_work(state: Conversation, work: RunWork, work_seq: int) -> WorkStep:
    """Return what to do about a delivered message. Pure, and safe to repeat for the same message.

    Once a message is to be acked, it never claims again, whatever follows in the log: the ack of a slow
    process may still arrive, and would remove the message that a later claim depends on.
    """
    if isinstance(work, StartRun) and not state.knows(work.run_id):
        return TakeIn(work)
    if state.run is not None and state.owner is not None:
        # The message of the owner was redelivered: the owner sends no heartbeats, so this is a takeover.
        return Claim() if state.owner.work_seq == work_seq else AckOnly()
    if state.run is not None and state.run.waits:
        return RepublishApproval()
    # A start has no effect once its run is in the log, and a resume has none after a later claim.
    if isinstance(work, StartRun) or work.owner_epoch != state.owner_epoch:
        return AckOnly()
    if state.run is not None:
        return Claim()
    run_id, begins = next_in_queue(state) or (None, ())
    return Claim((part(run_id, *begins),)) if run_id == work.run_id else AckOnly()


async def _take_in(
    ports: Ports,
    state: Conversation,
    new: tuple[StartRun, ...],
    start: StartRun,
    work_seq: int,
    start_next: bool,
) -> Ownership | None:
    """Record new runs in their order, and claim the next one if none is open.

    Not before the run of the message itself is recorded, because the owner acks the message.
    """
    if state.run is None and any(one.run_id == start.run_id for one in new):
        return await _claim(ports, state, [started(ports, one) for one in new], work_seq, start_next)
    await append_parts(ports, state, [queued(ports, one) for one in new])
    return None


async def _claim(
    ports: Ports, state: Conversation, parts: Iterable[Part], work_seq: int, start_next: bool
) -> Ownership | None:
    """Append the claim and return the ownership; None if another commit came first."""
    # The epoch is above that of each earlier claim, which fences earlier owners at their next read or append.
    owner = Owner(agent=ports.agent, owner_epoch=state.owner_epoch + 1, work_seq=work_seq)
    # The first commit of a log names its epoch.
    log_epoch = state.log_epoch or ports.clock.new_id("l")

    def drafted(extent: Extent) -> tuple[Draft, Commit]:
        draft = Draft(state, ports.clock.now())
        draft.add_parts(parts)
        # The first iteration joins the claim, which saves a durable write.
        draft.follow(extent)
        commit = draft.to_commit(
            ports.clock.new_id("e"),
            log_epoch,
            None if draft.needs_no_owner else owner,
            claim=owner.owner_epoch,
            after_reconnect=ports.reconnected(),
        )
        return draft, commit

    commit, stored = await append_fitting(ports, state, drafted, start_next=start_next)
    if stored is None:
        return None
    took_over = state.owner is not None
    owned = Ownership(
        ports,
        stored,
        owner,
        took_over=took_over,
        start_next=start_next,
        workspace=None if stored.run is None else stored.run.settings.workspace,
        confirmed_at=commit.ts,
    )
    if not owned.holds:
        # This claim parked or ended the run, so no loop follows that would publish the request.
        await publish_requests(ports, stored)
    return owned
