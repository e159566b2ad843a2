"""The ports of `banksman.runs`, implemented by the simulation: each call is one `Op`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from banksman.bus.storage.kv import Entry
from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted
from banksman.contracts.events import Commit
from banksman.contracts.work import (
    ApprovalReply,
    ApprovalRequest,
    FirstApproval,
    LinkUse,
    ResumeRun,
    RunSignal,
    RunWork,
    StartRun,
)
from banksman.gateway.runs.idempotency import RequestRecord
from banksman.runs.fold import apply_commit, complete_commit
from banksman.runs.ports import Placement
from banksman.runs.state import Conversation
from tests.runs.processes import Op, Process

if TYPE_CHECKING:
    from tests.runs.world import World


@dataclass
class SimulatedClock:
    """One clock for all processes."""

    world: World

    def now(self) -> datetime:
        return self.world.now

    def new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self.world.ids)}"


@dataclass
class SimulatedNotifications:
    """The notifications of an agent, each of which may be lost."""

    world: World
    agent: Process

    async def slots(self, state: Conversation, attempt: str) -> AttemptSlots:
        return self.agent.seen.get(attempt, AttemptSlots())

    def shown(self, state: Conversation, attempt: str) -> None:
        return None

    async def forget(self, state: Conversation, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self.agent.seen.pop(attempt, None)

    async def wait(self, state: Conversation, until: datetime) -> bool:
        agent, world, conversation_id = self.agent, self.world, state.conversation_id

        def commits() -> bool:
            return conversation_id in agent.hinted or agent.newest.get(conversation_id, 0) > state.stream_seq

        def ready() -> bool:
            return commits() or conversation_id in agent.news or world.now >= until

        def take() -> bool:
            found = commits() or conversation_id not in agent.news
            agent.news.discard(conversation_id)
            agent.hinted.discard(conversation_id)
            return found

        return await Op("wait", take, ready, until, may_fail=False)


@dataclass
class SimulatedLog:
    """EVENTS, folded by the production code."""

    world: World
    agent: Process

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        return self.agent.folds.get(conversation_id) or Conversation(tenant, conversation_id)

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        state = await Op("read log", lambda: self.world.broker.fold(conversation_id))
        return self._remember(state)

    async def append(
        self, state: Conversation, commit: Commit, *, folded: Conversation
    ) -> Conversation | None:
        def append() -> Conversation | None:
            stored = self.world.broker.append(state, commit)
            if stored is None:
                self.world.situations["owner: append met another commit"] += 1
                return None
            after = complete_commit(state, folded, stored.stream_seq, commit)
            # The owner has applied the events already, which must give the same state as the whole commit.
            assert after == apply_commit(state, stored.stream_seq, commit)
            return after

        stored = await Op("append", append)
        return stored and self._remember(stored)

    def _remember(self, state: Conversation) -> Conversation:
        if self.cached(state.tenant, state.conversation_id).stream_seq <= state.stream_seq:
            self.agent.folds[state.conversation_id] = state
        return state


@dataclass
class SimulatedSlots:
    """RESULTS, as an owner may use it."""

    world: World

    async def store_started(self, tenant: str, started: CallStarted) -> CallStarted:
        def put() -> CallStarted:
            free = self.world.broker.store_started(started)
            self.world.situations[
                "slots: void stored" if free else "slots: void refused, it had started"
            ] += 1
            return self.world.broker.started[started.attempt]

        return await Op("void", put, about=started.attempt)

    async def store_result(self, tenant: str, finished: CallFinished) -> CallFinished:
        return await Op("declare", lambda: self.world.broker.store_result(finished), about=finished.attempt)

    async def read(self, tenant: str, attempt: str) -> AttemptSlots:
        broker = self.world.broker
        return await Op(
            "read slots",
            lambda: AttemptSlots(broker.started.get(attempt), broker.finished.get(attempt)),
            about=attempt,
        )

    async def forget(self, tenant: str, attempts: tuple[str, ...]) -> None:
        await Op("forget", lambda: self.world.forget(attempts), about=attempts[0])

    async def forget_results(self, tenant: str, attempts: tuple[str, ...]) -> None:
        await Op("forget results", lambda: self.world.broker.forget_results(attempts), about=attempts[0])


@dataclass
class SimulatedRunnerSlots:
    """RESULTS, as a runner may use it."""

    world: World
    process: Process

    async def start(self, tenant: str, started: CallStarted) -> bool:
        return await Op(
            "start", lambda: self.world.start_attempt(self.process, started), about=started.attempt
        )

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        stored = await Op(
            "finish", lambda: self.world.broker.store_result(finished), may_fail=False, about=finished.attempt
        )
        return stored == finished


@dataclass
class SimulatedApprovals:
    """APPROVALS and its timers."""

    world: World

    async def publish_request(self, request: ApprovalRequest) -> None:
        await Op("request approval", lambda: self.world.publish_approval_request(request))

    async def store_reply(self, reply: ApprovalReply) -> ApprovalReply:
        return await Op("settle approval", lambda: self.world.broker.store_approval_reply(reply))

    async def first(self, tenant: str, approval_id: str) -> FirstApproval | None:
        return await Op("read first", lambda: self.world.broker.firsts.get(approval_id))

    async def use_link(self, tenant: str, approval_id: str, link: str, use: LinkUse) -> LinkUse:
        raise AssertionError("no simulated decision comes through a link")

    async def store_first(self, first: FirstApproval) -> FirstApproval:
        return await Op("store first", lambda: self.world.broker.firsts.setdefault(first.approval_id, first))

    async def discard_reply(self, reply: ApprovalReply, reason: str) -> None:
        def discard() -> None:
            self.world.broker.discard(reply, reason)
            self.world.situations["approval: forged decision dead-lettered"] += 1

        await Op("discard", discard)

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        broker = self.world.broker
        return await Op(
            "read approval", lambda: (broker.requests.get(approval_id), broker.replies.get(approval_id))
        )


@dataclass
class SimulatedRequests:
    """KV `idempotency`."""

    world: World

    async def create(self, key: str, value: RequestRecord) -> int | None:
        stored = await Op("remember", lambda: self.world.broker.notes.setdefault(key, value))
        return 1 if stored is value else None

    async def get(self, key: str) -> Entry[RequestRecord] | None:
        # A record never changes: the read is not a step that can interleave.
        return Entry(key, self.world.broker.notes[key], 1)


@dataclass
class SimulatedIntake:
    """RUNS, as a gateway may use it."""

    world: World

    async def start(self, work: StartRun) -> None:
        await Op("publish start", lambda: self.world.broker.publish("work", f"start:{work.run_id}", work))


@dataclass
class SimulatedWork:
    """RUNS, as an agent may use it."""

    world: World

    async def publish(self, work: StartRun | ResumeRun) -> None:
        msg_id = f"start:{work.run_id}" if isinstance(work, StartRun) else f"resume:{work.cause}"
        await Op("publish work", lambda: self.world.broker.publish("work", msg_id, work))

    async def next(
        self, tenant: str, conversation_id: str, *, after: int
    ) -> tuple[int, RunWork | RunSignal] | None:
        def find() -> tuple[int, RunWork | RunSignal] | None:
            waiting = self.world.broker.waiting(conversation_id)
            return next(((message.seq, message.body) for message in waiting if message.seq > after), None)

        return await Op("read work", find)

    async def wake_owner(self, tenant: str, conversation_id: str) -> None:
        await Op("nudge", lambda: self.world.wake(conversation_id))


@dataclass
class SimulatedRunners:
    """Leases, placements and core requests."""

    world: World

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        return await Op("place", lambda: self.world.place(conversation_id))

    async def forget(self, tenant: str, conversation_id: str) -> None:
        await Op("forget workspace", lambda: None)

    async def alive(self, placement: Placement) -> bool:
        return await Op("alive", lambda: self.world.alive(placement), may_fail=False)

    async def call(
        self, placement: Placement, request: CallRequest, shown: object = None
    ) -> CallReply | None:
        return await Op("call", lambda: self.world.call(placement, request), about=request.attempt)

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        await Op("cancel call", lambda: self.world.cancel_call(placement, attempt), about=attempt)
