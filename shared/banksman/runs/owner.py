"""The owner of an open run: it commits to the log under its claim, and stops when it finds a higher one.

Ownership is a fact of the log: the claim with the highest epoch determines who owns a run, and no lock or
acknowledgement does. One commit is one durable write, so what belongs together goes into one: an outcome, the
events that follow from it, and the claim of the next queued run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from banksman.contracts.approvals import ApprovalRequested, InputRequested
from banksman.contracts.errors import CallerMistake, Fenced, Refused
from banksman.contracts.events import (
    Commit,
    Event,
    EventBody,
    IterationStarted,
    Owner,
    RunFinished,
    RunStarted,
)
from banksman.runs.approval.requests import publish_requests
from banksman.runs.fold import apply_events
from banksman.runs.ports import Ports
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, Run, replace
from banksman.runs.steps import Idle, Park, RecordEvents, next_in_queue, next_step

PAUSE_S = 3.0
"""Seconds without a proof of ownership after which another process may own the run: a frozen process sends no
heartbeat, and after 3 s without one the queue redelivers the work message to another process."""
RETRY_S = 1.0
"""Seconds after which an owner retries a request that the broker refused or did not respond to."""

Build = Callable[[Conversation], Iterable[EventBody]]
"""Returns what to record, given the state that the commit follows. It runs again after a conflict."""


Part = tuple[str | None, Build]
"""Events of one run in a commit: its id, and what to record after the events before them."""


def part(run_id: str | None, *bodies: EventBody) -> Part:
    return run_id, lambda _state: bodies


def nothing(_state: Conversation) -> tuple[EventBody, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Extent:
    follows: bool
    """Whether it contains the events that follow from the recorded ones for the same run."""
    starts_next: bool
    """Whether it contains the start of the next queued run if this run ends."""


EXTENTS = (Extent(True, True), Extent(True, False), Extent(False, False))
"""From the largest to the smallest: each is tried when the one before it does not fit one message."""


@dataclass
class Draft:
    """The events of a commit that follows `state`; `state` moves on with each of them."""

    state: Conversation
    now: datetime
    events: list[Event] = field(default_factory=list[Event])

    def add(self, run_id: str | None, bodies: Iterable[EventBody]) -> None:
        """Append events and fold them, so that what follows is decided by the state with them."""
        state, events = self.state, list[Event]()
        iteration = 0 if state.run is None else state.run.iteration
        for seq, body in enumerate(bodies, start=state.last_seq + 1):
            if isinstance(body, IterationStarted):
                iteration = body.n
            elif isinstance(body, RunStarted | RunFinished):
                iteration = 0
            events.append(Event(seq=seq, ts=self.now, run_id=run_id, iteration=iteration or None, data=body))
        self.events += events
        self.state = replace(apply_events(state, events), last_seq=state.last_seq + len(events))

    def add_parts(self, parts: Iterable[Part]) -> None:
        for run_id, build in parts:
            self.add(run_id, build(self.state))

    def follow(self, extent: Extent) -> None:
        """Append the events that follow from the log alone, as far as `extent` goes."""
        while extent.follows:
            step = next_step(self.state, self.now)
            if isinstance(step, RecordEvents):
                self.add(step.run_id, step.bodies)
            elif isinstance(step, Idle) and extent.starts_next and (queued := next_in_queue(self.state)):
                self.add(*queued)
            else:
                return

    @property
    def needs_no_owner(self) -> bool:
        """True when the conversation needs no owner: no run is open, or the open one waits for a decision."""
        return isinstance(next_step(self.state, self.now), Idle | Park)

    def to_commit(
        self,
        commit_id: str,
        log_epoch: str,
        owner: Owner | None,
        *,
        claim: int | None = None,
        after_reconnect: bool = False,
    ) -> Commit:
        """Return the commit that holds the events; `claim` is the epoch that it claims, None for none."""
        return Commit(
            ts=self.now,
            id=commit_id,
            log_epoch=log_epoch,
            first_seq=self.state.last_seq + 1 - len(self.events),
            owner=owner,
            owner_epoch=self.state.owner_epoch if claim is None else claim,
            claim=claim is not None,
            after_reconnect=after_reconnect,
            events=tuple(self.events),
        )


@dataclass
class Ownership:
    """A claimed run. Every commit is appended by compare-and-set under this claim."""

    ports: Ports
    state: Conversation
    owner: Owner
    took_over: bool = False
    """True when another owner drove the run before: it may have sent its open calls to a runner."""
    start_next: bool = True
    """False leaves the next queued run to the process that drives runs of its kind."""
    workspace: str | None = None
    """The conversation in whose workspace calls run; None for its own."""
    on_commit: Callable[[], None] | None = None
    """Runs after each commit under this claim; not after the claim itself."""
    before_run: Callable[[], Awaitable[None]] | None = None
    """Is awaited before each run that is driven under this claim."""
    confirmed_at: datetime | None = None
    """When the log last showed that this claim owns the run; None sets the time of creation."""

    def __post_init__(self) -> None:
        self.confirmed_at = self.confirmed_at or self.ports.clock.now()

    @property
    def run(self) -> Run:
        """The open run. Only valid while `holds`."""
        if self.state.run is None:
            raise RuntimeError(f"{self.state.conversation_id}: no run is open")
        return self.state.run

    @property
    def holds(self) -> bool:
        """True while a run is open and this claim owns it; False after it ended or was parked."""
        return self.state.run is not None and self.state.owner == self.owner

    async def commit(self, build: Build) -> None:
        """Record the events of `build` and the events that follow from them, as far as they fit one message.

        Raises:
            Fenced: A higher claim owns the run.
            CallerMistake: The events of `build` do not fit one message.
        """
        while True:
            self._check_fence()
            # Built again in each round: after a cancel or a decision of others, other events follow.
            bodies = tuple(build(self.state))
            commit, stored = await append_fitting(
                self.ports, self.state, partial(self._drafted, bodies), start_next=self.start_next
            )
            if stored is self.state:
                return
            if stored is not None:
                self.state, self.confirmed_at = stored, commit.ts
                return await self._committed(commit)
            # Another commit came first: a cancel, a decision, a steer, or a higher claim.
            await self.refresh()

    def _drafted(self, bodies: tuple[EventBody, ...], extent: Extent) -> tuple[Draft, Commit]:
        draft = Draft(self.state, self.ports.clock.now())
        draft.add(self.run.run_id, bodies)
        draft.follow(extent)
        # A run that ends or parks gives up its owner in the same commit, so that no crash leaves a run owned
        # that nothing drives.
        owner = None if draft.needs_no_owner else self.owner
        return draft, draft.to_commit(self.ports.clock.new_id("e"), self.state.log_epoch, owner)

    async def refresh(self) -> None:
        """Fold in the commits of others; raise `Fenced` if a higher claim owns the run."""
        # Before the read: the process may be stopped while its result is on the way.
        now = self.ports.clock.now()
        self.state = await self.ports.log.read(self.state.tenant, self.state.conversation_id)
        self.confirmed_at = now
        # At each read and not only at an append: a fenced owner must not send another request to a runner.
        self._check_fence()

    async def confirm(self) -> None:
        """Read the log again if the last proof of ownership is older than `PAUSE_S`; raise as `refresh`.

        Call it before each model request, because a process that was frozen would pay for a reply that it
        cannot record, and before the request for a call is repeated, because a fenced owner must not send it.
        """
        latest = timedelta(seconds=PAUSE_S)
        if self.confirmed_at is None or self.ports.clock.now() - self.confirmed_at > latest:
            await self.refresh()

    async def wait(self, until: datetime) -> None:
        """Wait until a message of the conversation is stored, or `until`; fold the commits of others."""
        if await self.ports.notifications.wait(self.state, until):
            # A cancel, a decision or a higher claim may have been committed meanwhile.
            await self.refresh()
        else:
            # The next append compares with the log, so a result is committed without reading it first.
            await self.confirm()

    async def wait_for_broker(self, cause: Refused) -> None:
        """Wait until the log can be read again, and fold it; raise `cause` if the run is parked or ended.

        The owner keeps its claim. Giving the run to another process would count as a crash of this one, and
        the other process would find the same broker.
        """
        while True:
            until = self.ports.clock.now() + timedelta(seconds=RETRY_S)
            await self.ports.notifications.wait(self.state, until)
            try:
                await self.refresh()
            except Refused:
                continue
            if self.holds:
                return
            raise cause

    async def _committed(self, commit: Commit) -> None:
        if self.on_commit is not None:
            self.on_commit()
        # After the commit and never before: a decision on a request that the log does not hold would be
        # refused.
        if any(isinstance(event.data, ApprovalRequested | InputRequested) for event in commit.events):
            await publish_requests(self.ports, self.state)

    def _check_fence(self) -> None:
        # Different, and not only higher: a log that was restored from a backup may end with a lower epoch.
        if self.state.owner_epoch != self.owner.owner_epoch:
            raise Fenced(self.state.conversation_id, self.owner.owner_epoch, self.state.owner_epoch)


async def append_fitting(
    ports: Ports, state: Conversation, drafted: Callable[[Extent], tuple[Draft, Commit]], *, start_next: bool
) -> tuple[Commit, Conversation | None]:
    """Append a commit of the largest extent that fits one message.

    Returns the commit, and the state after it: None when another commit came first, `state` itself when there
    is nothing to record. Raises `CallerMistake` if not even the smallest commit fits.
    """
    too_large: CallerMistake | None = None
    for extent in EXTENTS:
        if extent.starts_next and not start_next:
            continue
        draft, commit = drafted(extent)
        if not commit.events and not commit.claim and commit.owner == state.owner:
            if too_large is not None:
                raise too_large
            return commit, state
        try:
            return commit, await ports.log.append(state, commit, folded=draft.state)
        except CallerMistake as error:
            too_large = error
    assert too_large is not None
    raise too_large


async def append(
    ports: Ports, state: Conversation, run_id: str | None, bodies: Iterable[EventBody]
) -> Conversation | None:
    """Record events without owning the run; the owner folds the commit in at its next append.

    Returns the new state, or None when another commit came first.
    """
    return await append_parts(ports, state, (part(run_id, *bodies),))


async def append_parts(ports: Ports, state: Conversation, parts: Iterable[Part]) -> Conversation | None:
    """Record the events of several runs in one commit; returns as `append`."""
    draft = Draft(state, ports.clock.now())
    draft.add_parts(parts)
    open_run = draft.state.run
    # A parked run that is cancelled has no owner that could end it, so this commit does.
    if state.owner is None and open_run is not None and open_run.cancel is not None:
        draft.follow(Extent(follows=True, starts_next=False))
    if not draft.events:
        return state
    # The first commit of a log names its epoch. The owner stays: this commit neither claims nor releases the
    # run.
    log_epoch = state.log_epoch or ports.clock.new_id("l")
    commit = draft.to_commit(ports.clock.new_id("e"), log_epoch, state.owner)
    return await ports.log.append(state, commit, folded=draft.state)


async def append_imported(
    ports: Ports, state: Conversation, events: tuple[Event, ...]
) -> Conversation | None:
    """Record events that an export states, with their times and new numbers; returns as `append`."""
    first = state.last_seq + 1
    added = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, start=first)]
    folded = replace(apply_events(state, added), last_seq=added[-1].seq)
    draft = Draft(folded, ports.clock.now(), added)
    log_epoch = state.log_epoch or ports.clock.new_id("l")
    commit = draft.to_commit(ports.clock.new_id("e"), log_epoch, state.owner)
    return await ports.log.append(state, commit, folded=folded)


async def record_activity(ports: Ports, tenant: str, conversation_id: str) -> None:
    """Append a commit without events for a driven run, so that its claims are no crash loop."""
    state = await ports.log.read(tenant, conversation_id)
    owned = state.owner is not None and state.owner.agent == ports.agent
    # Not once the limit is reached: the run then ends as a crash loop, which a commit does not undo.
    if owned and 0 < state.claims_in_row < CRASH_LOOP_CLAIMS:
        draft = Draft(state, ports.clock.now())
        commit = draft.to_commit(ports.clock.new_id("e"), state.log_epoch, state.owner)
        await ports.log.append(state, commit, folded=draft.state)
