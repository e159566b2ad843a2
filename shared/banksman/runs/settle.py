"""Settling calls: from open calls to one stored result each, whatever happens to their runner.

The decision about one call is `call_step`, pure; `settle` carries it out for all calls of an iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted
from banksman.contracts.errors import Poison
from banksman.contracts.events import ApprovalItem, EventBody, ToolCallCompleted, WorkspaceChanged
from banksman.contracts.ids import attempt_id
from banksman.contracts.tools import ErrorKind, ToolResult, failed
from banksman.contracts.wire import MAX_DEPTH, depth_of
from banksman.runs.losses import losses
from banksman.runs.owner import Ownership
from banksman.runs.ports import Facts, Placement
from banksman.runs.state import Conversation, OpenCall
from banksman.runs.steps import Ending, Settle, deadline_of

ASK_AGAIN_S = 2.0
"""Seconds after which a call that shows neither start nor result is asked for again."""

BUSY_S = 0.25
"""Seconds before a busy runner is asked again."""

CANCEL_GRACE_S = 2.0
"""Seconds a cancelled call has to store its own result."""

OVERTIME_S = 5.0
"""Seconds beyond its time-out before a call whose runner is silent about it is cancelled by the owner."""

NOWHERE_S = 75.0
"""Seconds without any runner that answers before a call ends as `unavailable`; longer than a changed
workspace waits for its runner."""

NOBODY = "No runner could take this call."

MOST_LOST_RUNNERS = 3
"""Runners that may go away with a call that can be repeated; after that many it is what ended them."""

COMMIT_BYTES = 512 * 1024
"""Of the results that go into one commit, in JSON; what is left goes into the next."""
RESULT_BYTES = 256 * 1024
"""Of one result in JSON; a longer one is replaced by one that says so."""


@dataclass
class Pursuit:
    """What the owner knows of one call it is settling."""

    open_call: OpenCall
    number: int = 1
    """The current attempt."""
    fresh: bool = True
    """False when an earlier owner may have asked somebody for this call."""
    placement: Placement | None = None
    """Whom this owner asked for the current attempt; None before it asked anyone."""
    accepted: bool = False
    """Whether `placement` took it, by its last answer."""
    taken: bool = False
    """Whether it ever did: a process that is gone answers nothing, and its successor that it is another."""
    asked_at: datetime | None = None
    ask_again_at: datetime | None = None
    nowhere_since: datetime | None = None
    """Since when no runner has answered; None when the last one asked did."""
    cancel_sent_at: datetime | None = None
    approved: ApprovalItem | None = None
    """The call as a person was asked about it; None for one that asked nobody, or was edited."""
    approved_until: datetime | None = None
    """When its approval expires: what has not started by then does not start. None where nobody was asked."""
    refused: str | None = None
    """Why it will never be tried."""
    refused_kind: ErrorKind = "unavailable"
    started_seen_at: datetime | None = None
    lost_runners: int = 0
    """Runners that took it and went away before it had a result."""

    @property
    def call_id(self) -> str:
        """The call's id."""
        return self.open_call.call.id

    @property
    def attempt(self) -> str:
        """The key of the current attempt's slots."""
        return attempt_id(self.call_id, self.number)

    @property
    def clean(self) -> bool:
        """True when no other process can still hold a request for this call."""
        return self.fresh and self.number == 1 and self.cancel_sent_at is None


@dataclass(frozen=True, slots=True)
class Conclude:
    """The call has its result."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Ask a runner."""


@dataclass(frozen=True, slots=True)
class Void:
    """Take the start slot, so that the attempt can never start.

    The void itself says whether another attempt follows. Several owners, one of them perhaps long fenced,
    may pursue a call at once; so what follows is decided by whoever fills the slot, and all others go by it.
    """

    moved: bool
    """True when the next attempt goes on; False when the call is to end without being executed."""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The attempt can never start, and another follows."""


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Ask the runner to end it."""

    runner: Placement


@dataclass(frozen=True, slots=True)
class Declare:
    """Store a result in the runner's place; the first one stored counts."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this moment unless something is stored."""

    until: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody will take the call, or nobody may any more."""

    reason: str
    kind: ErrorKind = "unavailable"


CallStep = Conclude | Dispatch | Void | NextAttempt | SendCancel | Declare | Wait | GiveUp


def call_step(
    pursuit: Pursuit, facts: Facts, *, runner_alive: bool, ending: Ending | None, now: datetime
) -> CallStep:
    """What to do about one call.

    Args:
        pursuit: what this owner did so far.
        facts: what the slots of the current attempt hold.
        runner_alive: whether the process that started it, or that was asked, may still act for it.
        ending: why the run is being wound down; None when it is not.
        now: the moment.
    """
    if facts.finished is not None:
        return Conclude(facts.finished.result)
    if facts.started is not None and facts.started.void:
        return _after_void(pursuit, facts.started, ending)
    if facts.started is not None:
        return _after_start(pursuit, facts.started, runner_alive, ending, now)
    return _before_start(pursuit, runner_alive, ending, now)


def _after_void(pursuit: Pursuit, void: CallStarted, ending: Ending | None) -> CallStep:
    if void.moved:
        return NextAttempt()
    if ending is not None:
        return Conclude(failed(pursuit.call_id, ending.call_kind, f"Not executed. {ending.message}"))
    return Conclude(failed(pursuit.call_id, pursuit.refused_kind, pursuit.refused or NOBODY))


def _after_start(
    pursuit: Pursuit, started: CallStarted, runner_alive: bool, ending: Ending | None, now: datetime
) -> CallStep:
    if not runner_alive or started.runner is None:
        return Declare(unknown(pursuit.call_id, "the machine that ran it went away"))
    seen = pursuit.started_seen_at or now
    overdue = seen + timedelta(seconds=pursuit.open_call.call.timeout_s + OVERTIME_S)
    if ending is None and now < overdue:
        return Wait(min(overdue, now + timedelta(seconds=ASK_AGAIN_S)))
    if pursuit.cancel_sent_at is None:
        return SendCancel(Placement(started.runner, started.runner_epoch))
    patience = pursuit.cancel_sent_at + timedelta(seconds=CANCEL_GRACE_S)
    if now < patience:
        return Wait(patience)
    return Declare(unknown(pursuit.call_id, "it did not end when it was told to"))


def _before_start(pursuit: Pursuit, runner_alive: bool, ending: Ending | None, now: datetime) -> CallStep:
    call = pursuit.open_call.call
    if ending is not None or pursuit.refused is not None:
        return _prevent(pursuit, ending)
    if pursuit.approved_until is not None and now > pursuit.approved_until:
        return GiveUp("Its approval expired before it could begin.", "not_executed")
    if pursuit.placement is not None and not runner_alive and not call.idempotent:
        return Void(moved=True)
    if pursuit.nowhere_since and now >= pursuit.nowhere_since + timedelta(seconds=NOWHERE_S):
        return GiveUp(NOBODY)
    if pursuit.ask_again_at is None or now >= pursuit.ask_again_at:
        return Dispatch()
    return Wait(pursuit.ask_again_at)


def _prevent(pursuit: Pursuit, ending: Ending | None) -> CallStep:
    if not pursuit.open_call.call.idempotent:
        return Void(moved=False)
    if pursuit.placement is not None and pursuit.cancel_sent_at is None:
        return SendCancel(pursuit.placement)
    kind: ErrorKind = ending.call_kind if ending is not None else pursuit.refused_kind
    text = ending.message if ending is not None else pursuit.refused or ""
    return Declare(failed(pursuit.call_id, kind, f"Not executed. {text}"))


def unknown(call_id: str, why: str) -> ToolResult:
    """The result of a call that started and whose end nobody saw."""
    text = (
        f"The outcome of this call is unknown: {why}. It started and may have had effects, "
        "wholly or in part. It was not repeated. Check before doing it again."
    )
    return failed(call_id, "unknown_outcome", text)


@dataclass
class Settlement:
    """All the calls an owner is settling, over as many `settle` rounds as it takes."""

    owned: Ownership
    pursuits: dict[str, Pursuit] = field(default_factory=dict[str, Pursuit])
    inherited: frozenset[str] = frozenset()
    """Calls that an earlier owner may have asked somebody for."""

    @classmethod
    def of(cls, owned: Ownership) -> Settlement:
        """For a run just claimed."""
        return cls.resumed(owned) if owned.took_over else cls(owned)

    @classmethod
    def resumed(cls, owned: Ownership) -> Settlement:
        """For a run that was driven before, by another or until something failed."""
        return cls(owned, inherited=frozenset(call.call.id for call in owned.run.open_calls))

    async def settle(self, step: Settle) -> None:
        """Bring the calls of `step` nearer to their results; commit those that have one.

        Returns after a commit, or when something new was stored that may change what comes next.

        Raises:
            Fenced: a higher claim owns the run.
        """
        now = self.owned.ports.clock.now()
        concluded: list[ToolResult] = []
        wake = now + timedelta(seconds=ASK_AGAIN_S)
        for open_call in step.calls:
            pursuit = self._pursuit(open_call)
            outcome = await self._advance(pursuit, step.ending)
            if isinstance(outcome, ToolResult):
                concluded.append(outcome)
            else:
                wake = min(wake, outcome)
        if concluded:
            await self._commit(concluded)
            return
        if step.ending is None:
            wake = min(wake, deadline_of(self.owned.run))
        state = self.owned.state
        await self.owned.ports.attention.wait(state.tenant, state.conversation_id, wake)
        await self.owned.refresh()

    def _pursuit(self, open_call: OpenCall) -> Pursuit:
        known = self.pursuits.get(open_call.call.id)
        if known is None:
            known = Pursuit(open_call, fresh=open_call.call.id not in self.inherited)
            if open_call.gate == "approved" and (approval := self.owned.run.approval) is not None:
                asked = {item.tool_call_id: item for item in approval.request.items}
                known.approved = None if open_call.edited else asked.get(open_call.call.id)
                known.approved_until = approval.request.expires_at
            self.pursuits[open_call.call.id] = known
        return known

    async def _advance(self, pursuit: Pursuit, ending: Ending | None) -> ToolResult | datetime:
        """Act on one call until it is concluded, or there is nothing to do before a moment."""
        ports = self.owned.ports
        while True:
            facts = await self._facts(pursuit)
            alive = await self._runner_alive(pursuit, facts)
            now = ports.clock.now()
            match call_step(pursuit, facts, runner_alive=alive, ending=ending, now=now):
                case Conclude(result):
                    return result
                case Wait(until):
                    return until
                case Dispatch():
                    await self._dispatch(pursuit)
                case Void(moved):
                    await self._void(pursuit, moved)
                case NextAttempt():
                    _begin_next(pursuit)
                case SendCancel(runner):
                    await ports.runners.cancel(runner, self.owned.state.tenant, pursuit.attempt)
                    pursuit.cancel_sent_at = now
                case Declare(result):
                    await self._declare(pursuit, result)
                case GiveUp(reason, kind):
                    pursuit.refused, pursuit.refused_kind = reason, kind

    async def _facts(self, pursuit: Pursuit) -> Facts:
        ports, tenant = self.owned.ports, self.owned.state.tenant
        facts = ports.attention.facts(tenant, pursuit.attempt)
        unseen = facts.finished is None
        if unseen and (not pursuit.fresh or _stale(pursuit, ports.clock.now())):
            try:
                facts = await ports.slots.read(tenant, pursuit.attempt)
            except Poison as poison:
                return self._unusable(pursuit, poison.reason)
        if facts.finished is not None and facts.finished.result.tool_call_id != pursuit.call_id:
            return self._unusable(pursuit, "the result that was stored is another call's")
        if facts.started is not None and not facts.started.void and pursuit.started_seen_at is None:
            pursuit.started_seen_at = ports.clock.now()
        return facts

    def _unusable(self, pursuit: Pursuit, why: str) -> Facts:
        """The facts of an attempt in whose slots nobody can read what became of it."""
        # Its slots stay: a runner that has not begun would find them free, and begin.
        pursuit.fresh = False
        result = unknown(pursuit.call_id, why)
        conversation_id = self.owned.state.conversation_id
        return Facts(
            finished=CallFinished(conversation_id=conversation_id, attempt=pursuit.attempt, result=result)
        )

    async def _runner_alive(self, pursuit: Pursuit, facts: Facts) -> bool:
        started = facts.started
        if started is not None and started.runner is not None:
            return await self.owned.ports.runners.alive(Placement(started.runner, started.runner_epoch))
        if pursuit.placement is not None:
            return await self.owned.ports.runners.alive(pursuit.placement)
        return True

    async def _dispatch(self, pursuit: Pursuit) -> None:
        ports, state, call = self.owned.ports, self.owned.state, pursuit.open_call.call
        now = ports.clock.now()
        placement = await self._place(pursuit)
        if placement is None:
            pursuit.ask_again_at = now + timedelta(seconds=BUSY_S)
            pursuit.nowhere_since = pursuit.nowhere_since or now
            return
        if pursuit.placement is not None and pursuit.placement != placement:
            pursuit.fresh = False
            pursuit.lost_runners += pursuit.taken and not await ports.runners.alive(pursuit.placement)
            if pursuit.lost_runners >= MOST_LOST_RUNNERS:
                pursuit.refused = f"{MOST_LOST_RUNNERS} runners in a row went away while they had this call."
                return
            pursuit.taken = False
        pursuit.placement = placement
        pursuit.asked_at = now
        request = CallRequest(
            tenant=state.tenant,
            conversation_id=state.conversation_id,
            run_id=self.owned.run.run_id,
            attempt=pursuit.attempt,
            call=call,
            # Not that of the call as the log has it: the runner compares.
            digest=call.digest if pursuit.approved is None else pursuit.approved.digest,
            runner_epoch=placement.runner_epoch,
            deadline=deadline_of(self.owned.run),
            left_s=(deadline_of(self.owned.run) - now).total_seconds(),
            workspace=self.owned.workspace,
            place=placement.place,
        )
        answer = await ports.runners.call(placement, request)
        _note_answer(pursuit, answer, ports.clock.now())

    async def _place(self, pursuit: Pursuit) -> Placement | None:
        """Whom to ask: a process that took the attempt keeps it for as long as it lives.

        A tool server has several; an idempotent call that runs in one would run in another too.
        """
        runners, state = self.owned.ports.runners, self.owned.state
        if pursuit.accepted and pursuit.placement and await runners.alive(pursuit.placement):
            return pursuit.placement
        workspace = self.owned.workspace or state.conversation_id
        return await runners.place(state.tenant, workspace, pursuit.open_call.call.server)

    async def _void(self, pursuit: Pursuit, moved: bool) -> None:
        ports, state = self.owned.ports, self.owned.state
        void = CallStarted(
            conversation_id=state.conversation_id,
            attempt=pursuit.attempt,
            runner=None,
            void=True,
            moved=moved,
            ts=ports.clock.now(),
        )
        await ports.slots.put_started(state.tenant, void)
        pursuit.fresh = False

    async def _declare(self, pursuit: Pursuit, result: ToolResult) -> None:
        state = self.owned.state
        finished = CallFinished(conversation_id=state.conversation_id, attempt=pursuit.attempt, result=result)
        await self.owned.ports.slots.put_result(state.tenant, finished)
        pursuit.fresh = False

    async def _commit(self, results: list[ToolResult]) -> None:
        placed = [self.pursuits[result.tool_call_id].placement for result in results]
        lost = [placement and placement.loss for placement in placed]
        for batch in batches([fitting(result) for result in results]):
            await self.owned.commit(
                lambda state, batch=batch: [*completions(state, batch), *losses(state, lost)]
            )
        done = [self.pursuits.pop(result.tool_call_id) for result in results]
        forgotten = tuple(pursuit.attempt for pursuit in done if pursuit.clean)
        if forgotten:
            await self.owned.ports.slots.forget(self.owned.state.tenant, forgotten)


def fitting(result: ToolResult) -> ToolResult:
    """The result, or in its place one that says why the log does not take it."""
    size = _bytes_of(result)
    if size > RESULT_BYTES:
        return _replaced(result, f"The result had {size} bytes; at most {RESULT_BYTES} are kept.")
    if depth_of(result.content) > MAX_DEPTH:
        return _replaced(result, f"The result was nested more than {MAX_DEPTH} levels deep; it is not kept.")
    return result


def _replaced(result: ToolResult, why: str) -> ToolResult:
    told = failed(result.tool_call_id, "output_limit", f"{why} The call was executed.")
    kept = {"runner": result.runner, "started_at": result.started_at, "duration_ms": result.duration_ms}
    return told.model_copy(update=kept)


def batches(results: Iterable[ToolResult]) -> Iterator[tuple[ToolResult, ...]]:
    """The results in groups that fit one commit each."""
    batch: list[ToolResult] = []
    size = 0
    for result in results:
        more = _bytes_of(result) + sum(len(change.model_dump_json().encode()) for change in result.changed)
        if batch and size + more > COMMIT_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(result)
        size += more
    if batch:
        yield tuple(batch)


def _bytes_of(result: ToolResult) -> int:
    return len(result.model_dump_json().encode())


def completions(state: Conversation, results: Iterable[ToolResult]) -> list[EventBody]:
    """The events of results that the log does not have yet."""
    run = state.run
    waiting = {call.call.id for call in run.open_calls} if run is not None else set[str]()
    bodies: list[EventBody] = []
    for result in results:
        if result.tool_call_id not in waiting:
            continue
        bodies.append(ToolCallCompleted(result=result))
        if result.changed:
            bodies.append(WorkspaceChanged(paths=tuple(change.model_dump() for change in result.changed)))
    return bodies


def _note_answer(pursuit: Pursuit, answer: CallReply | None, now: datetime) -> None:
    kind = "wrong_epoch" if answer is None else answer.answer
    pursuit.accepted = kind == "accepted"
    pursuit.taken = pursuit.taken or pursuit.accepted
    pursuit.nowhere_since = (pursuit.nowhere_since or now) if kind == "wrong_epoch" else None
    again = BUSY_S if kind in ("busy", "wrong_epoch") else ASK_AGAIN_S
    pursuit.ask_again_at = now + timedelta(seconds=again)
    if answer is not None and kind == "refused":
        pursuit.refused = answer.reason or "The runner refused the call."
    if kind == "done":
        pursuit.fresh = False


def _stale(pursuit: Pursuit, now: datetime) -> bool:
    return pursuit.asked_at is not None and now - pursuit.asked_at >= timedelta(seconds=ASK_AGAIN_S)


def _begin_next(pursuit: Pursuit) -> None:
    pursuit.number += 1
    pursuit.placement = None
    pursuit.accepted = False
    pursuit.taken = False
    pursuit.asked_at = None
    pursuit.ask_again_at = None
    pursuit.nowhere_since = None
    pursuit.started_seen_at = None
    pursuit.cancel_sent_at = None
