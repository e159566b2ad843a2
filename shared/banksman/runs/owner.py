"""The owner of an open run: claims it, commits to its log, and stops when a higher claim is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from banksman.contracts.errors import CallerMistake, Fenced, Refused
from banksman.contracts.events import ApprovalRequested, EventBody, Owner
from banksman.contracts.work import ApprovalRequest, RunWork
from banksman.runs.delivery import AskAgain, Claim, Enqueue, Nothing, meaning
from banksman.runs.ports import Ports
from banksman.runs.record import Draft
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, Run

HOLD_ON_S = 1.0
"""Seconds after which an owner tries again what the broker refused or did not answer."""

ALONE, WITH_END, WITH_NEXT_RUN = range(3)
"""What a commit holds beside what was to be recorded: nothing; what follows for its run; and the next run."""

Build = Callable[[Conversation], Iterable[EventBody]]
"""Says what to record, given the state it will be appended to. May be asked again after a conflict."""


@dataclass
class Ownership:
    """A claimed run. Every commit is appended by compare-and-set under this claim."""

    ports: Ports
    state: Conversation
    owner: Owner
    took_over: bool = False
    """True when another owner was driving the run: it may have asked somebody for the open calls."""
    start_next: bool = True
    """False leaves the next queued run to those who drive such runs."""
    workspace: str | None = None
    """The conversation in whose workspace calls run; None for its own."""
    on_commit: Callable[[], None] | None = None
    """Called after each commit under this claim, not for the claim itself."""

    @property
    def run(self) -> Run:
        """The open run. Only to be read while `holds`."""
        if self.state.run is None:
            raise RuntimeError(f"{self.state.conversation_id}: no run is open")
        return self.state.run

    @property
    def holds(self) -> bool:
        """True while a run is open and this claim owns it; False once it ended or was parked."""
        return self.state.run is not None and self.state.owner == self.owner

    async def commit(self, build: Build) -> None:
        """Record what `build` says and all that follows from it, as far as that fits one message.

        Raises:
            Fenced: a higher claim owns the run.
            CallerMistake: what is to be recorded does not fit one message by itself.
        """
        extent = WITH_NEXT_RUN if self.start_next else WITH_END
        while True:
            self._check_fence()
            draft = Draft(self.state, self.ports.clock.now())
            run_id = self.run.run_id
            bodies = tuple(build(self.state))
            draft.add(run_id, bodies)
            if extent != ALONE:
                draft.follow(start_next=extent == WITH_NEXT_RUN)
            owner = None if draft.rests else self.owner
            if not draft.events and owner == self.state.owner:
                return
            commit = draft.commit(self.ports.clock.new_id("e"), self.state.log_epoch, owner)
            try:
                stored = await self.ports.log.append(self.state, commit)
            except CallerMistake:
                if extent == ALONE or (extent == WITH_END and not bodies):
                    raise
                extent -= 1
                continue
            if stored is not None:
                self.state = stored
                break
            await self.refresh()
        if self.on_commit is not None:
            self.on_commit()
        if any(isinstance(event.data, ApprovalRequested) for event in commit.events):
            await ask(self.ports, self.state)

    async def refresh(self) -> None:
        """Fold in what others appended.

        Raises:
            Fenced: a higher claim owns the run.
        """
        self.state = await self.ports.log.read(self.state.tenant, self.state.conversation_id)
        self._check_fence()

    async def hold_on(self, pause: Refused) -> None:
        """Wait until the log can be read again, and go by what it says.

        The claim stays: giving the run to another would count as if this process had died with it, and the
        other would meet the same broker.

        Args:
            pause: What the broker refused, or did not answer.

        Raises:
            Fenced: a higher claim owns the run.
            Refused: `pause`, when nothing is left to drive; what it left out is done on redelivery.
        """
        tenant, conversation_id = self.state.tenant, self.state.conversation_id
        while True:
            until = self.ports.clock.now() + timedelta(seconds=HOLD_ON_S)
            await self.ports.attention.wait(tenant, conversation_id, until)
            try:
                await self.refresh()
            except Refused:
                continue
            if self.holds:
                return
            raise pause

    def _check_fence(self) -> None:
        if self.state.owner_epoch != self.owner.owner_epoch:
            raise Fenced(self.state.conversation_id, self.owner.owner_epoch, self.state.owner_epoch)


async def accept(
    ports: Ports,
    work: RunWork,
    work_seq: int,
    *,
    start_next: bool = True,
    on_commit: Callable[[], None] | None = None,
) -> Ownership | None:
    """Do what a delivered work message asks for, up to the claim. Safe to run on every redelivery.

    Args:
        ports: The world.
        work: What the message says.
        work_seq: Its stream sequence.
        start_next: Whether the owner goes on with the next queued run when this one ends.
        on_commit: Called after each commit of the owner, not for its claim.

    Returns:
        The claimed run; None when there is nothing to drive and the message is to be acked.
    """
    while True:
        state = await ports.log.read(work.tenant, work.conversation_id)
        match meaning(state, work, work_seq):
            case Nothing():
                return None
            case AskAgain():
                await ask(ports, state)
                return None
            case Enqueue(run_id, bodies):
                await append(ports, state, run_id, bodies)
            case Claim(run_id, bodies):
                owned = await _claim(ports, state, run_id, bodies, work_seq, start_next)
                if owned is not None:
                    owned.on_commit = on_commit
                    return owned if owned.holds else None


async def _claim(
    ports: Ports,
    state: Conversation,
    run_id: str,
    bodies: Iterable[EventBody],
    work_seq: int,
    start_next: bool,
) -> Ownership | None:
    owner = Owner(agent=ports.agent, owner_epoch=state.owner_epoch + 1, work_seq=work_seq)
    draft = Draft(state, ports.clock.now())
    draft.add(run_id, bodies)
    draft.follow(start_next=start_next)
    log_epoch = state.log_epoch or ports.clock.new_id("l")
    commit = draft.commit(
        ports.clock.new_id("e"), log_epoch, None if draft.rests else owner, claim=owner.owner_epoch
    )
    stored = await ports.log.append(state, commit)
    if stored is None:
        return None
    owned = Ownership(ports, stored, owner, took_over=state.owner is not None, start_next=start_next)
    if not owned.holds:
        await ask(ports, stored)
    return owned


async def append(
    ports: Ports, state: Conversation, run_id: str | None, bodies: Iterable[EventBody]
) -> Conversation | None:
    """Record events without owning the run. The owner, if there is one, meets the commit and goes on from it.

    Returns:
        The new state; None when another commit came first.
    """
    draft = Draft(state, ports.clock.now())
    draft.add(run_id, bodies)
    open_run = draft.state.run
    if state.owner is None and open_run is not None and open_run.cancel is not None:
        draft.follow(start_next=False)
    if not draft.events:
        return state
    log_epoch = state.log_epoch or ports.clock.new_id("l")
    return await ports.log.append(state, draft.commit(ports.clock.new_id("e"), log_epoch, state.owner))


async def show_life(ports: Ports, tenant: str, conversation_id: str) -> None:
    """Record that this process still drives a run, by a commit without events: it is no crash loop."""
    state = await ports.log.read(tenant, conversation_id)
    owned = state.owner is not None and state.owner.agent == ports.agent
    if owned and 0 < state.claims_in_row < CRASH_LOOP_CLAIMS:
        draft = Draft(state, ports.clock.now())
        await ports.log.append(state, draft.commit(ports.clock.new_id("e"), state.log_epoch, state.owner))


async def ask(ports: Ports, state: Conversation) -> None:
    """Store the open question of a run. Done once by the server, however often it is repeated here."""
    question = open_question(state)
    if question is not None:
        await ports.approvals.ask(question)


def open_question(state: Conversation) -> ApprovalRequest | None:
    """What a person is being asked, as the log has it; None when nothing is open."""
    run = state.run
    if run is None or run.approval is None or not run.waits:
        return None
    asked = run.approval.request
    return ApprovalRequest(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run.run_id,
        approval_id=asked.approval_id,
        expires_at=asked.expires_at,
        items=asked.items,
    )
