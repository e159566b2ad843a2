"""A simulation of the protocol: a broker, agents, a gateway and runners, one await at a time.

The procedures of `banksman.runs` are coroutines over ports. Here every port call is an `Op` that the test
executes, delays or fails, so the test chooses each interleaving, and no event loop does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from banksman.bus.errors import MessageTooLarge
from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.calls import CallReply, CallRequest, CallStarted
from banksman.contracts.errors import CallerMistake, Conflict, ErrorCode, Fenced, NotReady
from banksman.contracts.events import Commit
from banksman.contracts.frames import ChatSend
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import (
    ApprovalReply,
    ApprovalRequest,
    CancelRun,
    DeleteConversation,
    EscalateApproval,
    ForgetDecision,
    ImportConversation,
    ImportEvents,
    RenameConversation,
    RunSignal,
    StartRun,
    SteerRun,
)
from banksman.gateway.approvals.decisions import AWAITING_SECOND, SubmittedDecision, decide
from banksman.gateway.conversations.views import sent_items
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.quotas.places import Shares
from banksman.runs import handlers
from banksman.runs.claim import accept
from banksman.runs.loop import drive
from banksman.runs.outcome import Ending
from banksman.runs.owner import Build, Ownership
from banksman.runs.ports import Placement, Ports
from banksman.runs.runners.calls import RunnerCalls
from banksman.runs.state import Conversation
from tests.runs.broker import TENANT, Broker
from tests.runs.invariants import InvariantChecker
from tests.runs.plans import Plan, calls_without_result, commit_of_reply, compact
from tests.runs.processes import Message, Op, Process, Task
from tests.runs.simulated import (
    SimulatedApprovals,
    SimulatedClock,
    SimulatedIntake,
    SimulatedLog,
    SimulatedNotifications,
    SimulatedRequests,
    SimulatedRunners,
    SimulatedRunnerSlots,
    SimulatedSlots,
    SimulatedWork,
)
from tests.runs.situations import SituationCounter

KEY = b"a signing key of the simulated gateways"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 3.0
RUNNER_GONE_S = 60.0
"""Seconds that a workspace waits for its runner before it moves to another."""
DELETE_AGAIN_S = 1.0
CAPACITY = 3
STORES = frozenset(
    {"append", "request approval", "void", "declare", "settle approval", "publish work", "publish start"}
)
"""Awaits that write to streams that may be full."""
HANGS_S = 150.0
"""Seconds after which a runner ends a hanging call itself, long after the owner has ended it."""


class World:
    """The broker and all processes that use it."""

    key = KEY

    def __init__(self, *, lossy: Callable[[], bool] = lambda: False) -> None:
        self.now = EPOCH
        self.lossy = lossy
        self.ids = itertools.count(1)
        self.situations = SituationCounter()
        self.broker = Broker()
        self.broker.on_commit = self._committed
        self.broker.on_slot = self._slot_stored
        self.invariants = InvariantChecker(self)
        self.acting: Task | None = None
        self.plans: dict[str, Plan] = {}
        self.clock = SimulatedClock(self)
        self.agents = [Process("agent-a"), Process("agent-b")]
        self.gateway = Process("gateway")
        self.runners = {name: Process(name, generation=0) for name in ("runner-1", "runner-2")}
        self.zombies: list[Process] = []
        self.leases: dict[str, int] = {}
        self.lease_ends: dict[str, datetime] = {}
        self.homes: dict[str, str] = {}
        self.unfit: set[str] = set()
        """Runners whose sandbox fails its self-test."""
        self.full_until = EPOCH
        """The time until which storage is full for owners and handlers."""
        self.model_requests: set[tuple[object, ...]] = set()
        """The model requests whose replies an owner has received, or is about to receive."""
        self.output = ""
        """The output of each call."""
        self.requested_runners: dict[str, set[str]] = {}
        """Runners that received a call request."""
        for runner in self.runners.values():
            self._boot(runner)

    # -- processes -----------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        return [*self.agents, self.gateway, *self.runners.values(), *self.zombies]

    def _boot(self, runner: Process) -> None:
        runner.up = True
        runner.lease_lost = False
        runner.generation = self.leases.get(runner.name, 0) + 1
        runner.calls = RunnerCalls(
            runner.name,
            runner.generation,
            SimulatedRunnerSlots(self, runner),
            capacity=Shares(CAPACITY),
            now=self.clock.now,
            may_start=lambda: not runner.lease_lost,
            may_repeat=lambda request: request.call.idempotent,
        )
        self.leases[runner.name] = runner.generation
        self.lease_ends.pop(runner.name, None)

    def crash(self, process: Process) -> None:
        self.situations["fault: process crashed"] += 1
        process.crash()
        if self.runners.get(process.name) is process:
            self.lease_ends[process.name] = self.now + timedelta(seconds=LEASE_S)

    def restart(self, process: Process) -> None:
        """Start a stopped process again. A disconnected one never regains its lease."""
        if process.up or process in self.zombies:
            return
        if process.name in self.runners:
            self._boot(process)
        else:
            process.generation += 1
            process.up = True

    def cut_off(self, runner: Process, *, knows: bool = True) -> None:
        """End the lease of a runner and start its successor; the old process continues its tasks.

        `knows` is False if an agent ended the lease of a closed connection, and the runner has not found it
        ended yet.
        """
        self.situations["fault: runner disconnected"] += 1
        runner.lease_lost = knows
        self.zombies.append(runner)
        successor = self.runners[runner.name] = Process(runner.name)
        self._boot(successor)

    def spawn(self, process: Process, name: str, coroutine: Coroutine[Op, Any, Any]) -> Task:
        task = Task(process, name, coroutine)
        process.tasks.append(task)
        self._act(task, task.start)
        return task

    def step(self, task: Task) -> None:
        full = self.now < self.full_until and task.op is not None and task.op.label in STORES
        self.situations["fault: storage full"] += full
        self._act(task, task.refuse if full else task.step)

    def fail(self, task: Task, *, done: bool) -> None:
        """Lose the reply of a port call, or its request."""
        self.situations["fault: port unavailable"] += 1
        self._act(task, lambda: task.fail(done=done))

    def crash_at(self, task: Task, *, done: bool) -> None:
        """Kill the process at an await, with its operation executed or not."""
        if done and task.op is not None:
            self._act(task, task.op.do)
        self.crash(task.process)

    def _act(self, task: Task, act: Callable[[], object]) -> None:
        before, self.acting = self.acting, task
        try:
            act()
        finally:
            self.acting = before
        if isinstance(task.failure, Fenced):
            self.situations["owner: fenced"] += 1

    @property
    def ready(self) -> list[Task]:
        """Tasks that can continue."""
        return [
            task
            for process in self.processes
            if not process.paused
            for task in process.tasks
            if task.op is not None and task.op.ready()
        ]

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.broker.fire(self.now)

    def pass_time_to_next_wake(self) -> bool:
        """Advance the clock to the next time that a task waits for; return False if there is none."""
        wake = self.next_wake()
        if wake is None:
            return False
        self.pass_time((wake - self.now).total_seconds())
        return True

    def next_wake(self) -> datetime | None:
        """Return the next time that a task, a message or a timer waits for."""
        wakes = [t.op.wakes_at for p in self.processes for t in p.tasks if t.op and t.op.wakes_at]
        wakes += [m.not_before for q in self.broker.queues.values() for m in q.open if m.not_before]
        wakes += [request.expires_at for request in self.broker.timers.values()]
        return min((moment for moment in wakes if moment > self.now), default=None)

    # -- notifications of the broker--------------------------------------------------------------------------

    def _committed(self, before: Conversation, commit: Commit, after: Conversation) -> None:
        if self.acting is not None:
            self.acting.commits += 1
        self.situations.commit(before, commit, after, self.acting)
        self.invariants.commit(before, commit, after)
        for agent in self.agents:
            if agent.up and not self.lossy():
                agent.newest[after.conversation_id] = after.stream_seq

    def _slot_stored(self, attempt: str, conversation_id: str) -> None:
        for agent in self.agents:
            if agent.up and not self.lossy():
                agent.seen[attempt] = _newer(agent, attempt, self.broker)
                agent.news.add(conversation_id)

    def wake(self, conversation_id: str) -> None:
        for agent in self.agents:
            if agent.up and not self.lossy():
                agent.hinted.add(conversation_id)

    def deliver(self, queue: str, message: Message, agent: Process) -> None:
        """Deliver a message to an agent: the first time, or again because its holder seems silent."""
        if message.acked or not agent.up or agent.paused:
            return
        if message.not_before is not None and self.now < message.not_before:
            return
        message.not_before = None
        message.holder = self.spawn(agent, queue, self._handle(queue, agent, message))

    def publish_approval_request(self, request: ApprovalRequest) -> None:
        known = request.approval_id in self.broker.requests
        if self.acting is not None and self.acting.name == "work" and not self.acting.commits:
            self.situations[
                "approval request: stored again by redelivery"
                if known
                else "approval request: stored again after a crash"
            ] += 1
        self.broker.store_approval_request(request)
        self.broker.fire(self.now)

    # -- agents --------------------------------------------------------------------------------------------

    def ports(self, agent: Process) -> Ports:
        return Ports(
            agent=agent.id,
            clock=self.clock,
            log=SimulatedLog(self, agent),
            slots=SimulatedSlots(self),
            approvals=SimulatedApprovals(self),
            work=SimulatedWork(self),
            runners=SimulatedRunners(self),
            notifications=SimulatedNotifications(self, agent),
            signing_key=KEY,
        )

    async def _handle(self, queue: str, agent: Process, message: Message) -> None:
        ports, body = self.ports(agent), message.body
        match queue, body:
            case "work", _:
                owned = await accept(ports, body, message.seq, alone=message.alone)
                if owned is not None:
                    await drive(owned, SimulatedModel(self))
                if owned is None or (owned.state.run is None and owned.state.queue):
                    await handlers.wake_queue(ports, self.broker.fold(body.conversation_id))
            case "replies", ApprovalReply():
                await handlers.on_decision(ports, body)
            case "timers", ApprovalRequest():
                await handlers.on_expiry(ports, body.tenant, body.conversation_id, body.approval_id)
            case "signals", _:
                await self._signal(ports, message)
            case _:
                raise AssertionError(f"{queue}: {body}")
        if message.not_before is None:
            await Op("ack", lambda: self._ack(queue, message))

    async def _signal(self, ports: Ports, message: Message) -> None:
        signal: RunSignal = message.body
        match signal:
            case CancelRun() | SteerRun() | ImportEvents():
                await handlers.on_ordered(ports, signal, message.seq)
            case ImportConversation():
                await handlers.on_import(ports, signal)
            case RenameConversation():
                await handlers.on_rename(ports, signal)
            case EscalateApproval():
                ids = signal.tenant, signal.conversation_id, signal.approval_id
                await handlers.on_escalation(ports, *ids, by=signal.by)
            case ForgetDecision():
                await handlers.on_forget(ports, signal)
            case DeleteConversation():
                await self._delete(ports, message)

    async def _delete(self, ports: Ports, message: Message) -> None:
        conversation_id: str = message.body.conversation_id
        tombstone = await handlers.on_delete(ports, message.body)
        if tombstone is not None:
            await Op("purge", lambda: self._purge(conversation_id, tombstone))
        else:
            self.situations["delete: waited for its run"] += 1
            message.not_before = self.now + timedelta(seconds=DELETE_AGAIN_S)

    def _purge(self, conversation_id: str, tombstone: int) -> None:
        last = self.broker.fold(conversation_id).stream_seq
        self.invariants.purged.add(conversation_id)
        self.situations["delete: purged"] += 1
        self.situations["delete: purged behind what came late"] += last > tombstone
        self.broker.purge(conversation_id, tombstone)
        assert self.broker.fold(conversation_id).deleted, "the tombstone was purged"

    def _ack(self, queue: str, message: Message) -> None:
        if queue == "work":
            self.invariants.ack(message)
        message.acked = True

    def store_snapshot(self, conversation_id: str) -> None:
        if self.broker.snapshot(conversation_id, self.now):
            self.situations["snapshot: while a run is driven"] += (
                self.broker.fold(conversation_id).owner is not None
            )

    # -- the gateway and its clients -----------------------------------------------------------------------

    def client_starts(self, conversation_id: str, request_id: str, plan: Plan, body: str = "go") -> None:
        if self.gateway.up:
            self.spawn(self.gateway, "start", self._start(conversation_id, request_id, plan, body))

    async def _start(self, conversation_id: str, request_id: str, plan: Plan, body: str) -> None:
        fresh = {"run_id": f"{conversation_id}-r{next(self.ids)}", "message_id": f"m{next(self.ids)}"}
        frame = ChatSend(type="chat.send", id=request_id, conversation_id=conversation_id, content=body)
        requests = StoredRequests(SimulatedRequests(self))
        try:
            ids = await requests.once(TENANT, request_id, frame, fresh, exclude={"id"})
        except Conflict:
            self.situations["client: other body under the same request id"] += 1
            return
        if ids["run_id"] != fresh["run_id"]:
            self.situations["client: request repeated"] += 1
        plan = self.plans.setdefault(ids["run_id"], plan)
        start = start_of(conversation_id, ids["run_id"], ids["message_id"], plan, body)
        await SimulatedIntake(self).start(start)
        await Op("ack client", lambda: self.invariants.report_run(request_id, ids["run_id"]))

    def client_decides(self, approval_id: str, verdict: SubmittedDecision) -> None:
        if self.gateway.up:
            self.spawn(self.gateway, "decide", self._decide(approval_id, verdict))

    async def _decide(self, approval_id: str, verdict: SubmittedDecision) -> None:
        try:
            decided = await decide(
                SimulatedApprovals(self), self.clock, KEY, TENANT, approval_id, verdict, _any_arguments
            )
        except CallerMistake:
            return
        except NotReady:
            if approval_id in self.broker.replies:
                self.situations["approval: forged decision read by a gateway"] += 1
            return
        if decided.outcome == AWAITING_SECOND:
            return
        await Op("reply to client", lambda: self.invariants.report_decision(approval_id, decided.outcome))

    def signal(self, request_id: str, signal: RunSignal) -> None:
        self.broker.publish("signals", f"signal:{request_id}", signal)

    def cancel(self, run_id: str, request_id: str | None = None, *, reason: str | None = None) -> None:
        conversation_id = run_id.partition("-")[0]
        cancel = CancelRun(
            tenant=TENANT, conversation_id=conversation_id, run_id=run_id, reason=reason, by="ann"
        )
        self.signal(request_id or f"cancel-{run_id}", cancel)

    def steer(self, conversation_id: str, number: int, plan: Plan) -> str:
        """Steer; return the id of the run that is started if none is open."""
        run_id, message_id = f"{conversation_id}-steer{number}", f"m-{conversation_id}-steer{number}"
        plan = self.plans.setdefault(run_id, plan)
        start = start_of(conversation_id, run_id, message_id, plan, "and this")
        steer = SteerRun(
            tenant=TENANT,
            conversation_id=conversation_id,
            message_id=message_id,
            content="and this",
            start=start,
            by="ann",
        )
        self.signal(f"steer-{run_id}", steer)
        return run_id

    def delete(self, conversation_id: str) -> None:
        delete = DeleteConversation(tenant=TENANT, conversation_id=conversation_id, by="ann")
        self.signal(f"delete-{conversation_id}", delete)

    # -- the runners ---------------------------------------------------------------------------------------

    def place(self, conversation_id: str) -> Placement | None:
        """Return the placement of the workspace, which moves after its runner has been away for long."""
        home = self.homes.get(conversation_id)
        if home is None or self._gone_for(home) >= RUNNER_GONE_S:
            alive = [name for name in self.runners if self._gone_for(name) < 0]
            if not alive:
                return None
            number = sum(ord(letter) for letter in conversation_id)
            home = self.homes[conversation_id] = alive[number % len(alive)]
        return Placement(home, self.leases[home]) if self._gone_for(home) < 0 else None

    def _gone_for(self, name: str) -> float:
        """Return the seconds since the lease of a runner ended; negative while it is valid."""
        ends = self.lease_ends.get(name)
        return -1.0 if ends is None else (self.now - ends).total_seconds()

    def alive(self, placement: Placement) -> bool:
        return (
            self.leases[placement.runner] == placement.runner_epoch and self._gone_for(placement.runner) < 0
        )

    def call(self, placement: Placement, request: CallRequest) -> CallReply | None:
        """Send a core request; the request or its reply may be lost."""
        runner = self.runners[placement.runner]
        if not runner.up or runner.calls is None or self.lossy():
            return None
        if runner.name in self.unfit:
            return CallReply(answer="refused", reason="The sandbox failed its self-test.")
        request = CallRequest.model_validate_json(request.model_dump_json())
        reply, perform = runner.calls.admit(request)
        self._count_reply(reply, perform, request, runner)
        if perform:
            task = Task(
                runner, "perform", self._perform(runner, runner.calls, request), attempt=request.attempt
            )
            runner.tasks.append(task)
            self._act(task, task.start)
        return None if self.lossy() else reply

    def _count_reply(self, reply: CallReply, perform: bool, request: CallRequest, runner: Process) -> None:
        if reply.answer in ("busy", "done"):
            self.situations[f"runner: {reply.answer}"] += 1
        if reply.answer == "wrong_epoch":
            self.situations["runner: wrong epoch"] += 1
        if reply.answer == "accepted" and not perform:
            self.situations["runner: request repeated during execution"] += 1
        call_id, _, number = request.attempt.rpartition("-")
        runners = self.requested_runners.setdefault(call_id, set())
        if perform and number != "1":
            self.situations["runner: next attempt"] += 1
            if runner.name not in runners:
                self.situations["runner: next attempt elsewhere"] += 1
        runners.add(runner.name)

    async def _perform(self, runner: Process, calls: RunnerCalls, request: CallRequest) -> None:
        await Op("queued", lambda: None, may_fail=False, about=request.attempt)
        await calls.perform(request, lambda request: self._execute(runner, request))

    async def _execute(self, runner: Process, request: CallRequest) -> ToolResult:
        call, attempt = request.call, request.attempt

        def effect() -> None:
            self.invariants.effect(request)
            if self.invariants.effects[call.id] > 1:
                self.situations["runner: idempotent call executed again"] += 1

        await Op("effect", effect, may_fail=False, about=attempt)
        hangs = bool(call.arguments.get("hangs"))
        lasts_s = HANGS_S if hangs else float(str(call.arguments.get("lasts_s") or 0))
        ends = self.now + timedelta(seconds=lasts_s)

        def over() -> bool:
            return attempt in runner.cancelled or self.now >= ends

        await Op("effect ends", lambda: None, over, ends, may_fail=False, about=attempt)
        if attempt in runner.cancelled:
            return failed(call.id, "cancelled", "ended").model_copy(update={"runner": runner.name})
        if hangs:
            return failed(call.id, "tool_error", "hung").model_copy(update={"runner": runner.name})
        content: JsonObject = {"success": True, "stdout": self.output} if self.output else {"success": True}
        return ToolResult(tool_call_id=call.id, content=content, runner=runner.name)

    def start_attempt(self, runner: Process, started: CallStarted) -> bool:
        """Store the start of an attempt; return True if this call stored it."""
        free = self.broker.store_started(started)
        if free:
            self.invariants.start_stored(started.attempt, runner.id)
        else:
            void = self.broker.started[started.attempt].void
            self.situations[f"runner: start refused, {'void' if void else 'started elsewhere'}"] += 1
        how = "start stored by" if free else "start refused to"
        if runner.lease_lost:
            self.situations[f"runner: {how} a disconnected one"] += 1
        elif runner in self.zombies:
            self.situations[f"runner: {how} one whose lease an agent ended"] += 1
        return free

    def forget(self, attempts: tuple[str, ...]) -> None:
        self.situations["slots: forgotten"] += 1
        self.invariants.forget(attempts, self.processes)
        self.broker.forget(attempts)

    def cancel_call(self, placement: Placement, attempt: str) -> None:
        """Send a core message to the runner process of this placement, if it is running."""
        if self.lossy():
            return
        for process in (*self.runners.values(), *self.zombies):
            if process.up and (process.name, process.generation) == (
                placement.runner,
                placement.runner_epoch,
            ):
                process.cancelled.add(attempt)

    # -- running to a state of rest ------------------------------------------------------------------------

    def settle_down(self, *, users_decide: bool = True, max_steps: int = 20_000) -> None:
        """Run without faults until nothing changes: all processes run, messages of silent holders are
        redelivered, and users decide or approval requests expire."""
        self.lossy = lambda: False
        self.full_until = self.now
        for process in self.processes:
            process.paused = False
            process.lease_lost = process in self.zombies
            self.restart(process)
        for number in range(max_steps):
            ready = self.ready
            if ready:
                self.step(ready[number % len(ready)])
            elif not (
                self.deliver_something(number)
                or (users_decide and self._decide_something())
                or self.pass_time_to_next_wake()
            ):
                return
        raise AssertionError(f"not quiet after {max_steps} steps: {[(t.name, t.op) for t in self.ready]}")

    def deliver_something(self, number: int = 0) -> bool:
        """Deliver one message that no task handles to an agent."""
        for name, queue in self.broker.queues.items():
            for message in queue.open:
                due = message.not_before is None or message.not_before <= self.now
                if due and not message.held:
                    self.deliver(name, message, self.agents[number % 2])
                    return True
        return False

    def _decide_something(self) -> bool:
        for approval_id in self.open_approval_requests:
            verdict = SubmittedDecision(by="ann", all="approve")
            if first := self.broker.firsts.get(approval_id):
                items = sent_items(self.broker.requests[approval_id].items, first)
                digests = tuple(item.digest for item in items)
                verdict = SubmittedDecision(by="bob", all="approve", digests=digests)
            self.client_decides(approval_id, verdict)
            return True
        return False

    @property
    def open_approval_requests(self) -> list[str]:
        """Return the approval requests that a user could decide now."""
        return [
            approval_id
            for approval_id, request in self.broker.requests.items()
            if approval_id not in self.broker.replies
            and approval_id not in self.invariants.resolved
            and self.now <= request.expires_at
        ]


@dataclass
class SimulatedModel:
    """The model of every run."""

    world: World

    async def complete(self, owned: Ownership) -> Build:
        assert not calls_without_result(owned.state.history), "the model is called with an invalid history"
        world, run = self.world, owned.run
        request = (owned.owner, run.run_id, run.iteration, run.malformed, owned.state.compaction)
        assert request not in world.model_requests, "an owner requests a reply that it received again"
        world.model_requests.add(request)
        await Op("model", lambda: None, may_fail=False)
        if world.plans[run.run_id].compacts and (compaction := compact(world.clock, owned.state, run)):
            world.situations["history: compacted"] += 1
            return compaction
        return commit_of_reply(world.clock, world.plans[run.run_id], run)

    def unrecorded(self, error: Exception, reply: Build) -> tuple[Ending, Build] | None:
        if not isinstance(error, MessageTooLarge):
            return None
        text = "The model's reply is too large."
        return Ending("failed", ErrorCode.TOO_LARGE, text, "not_executed"), lambda _: ()


async def _any_arguments(_name: str, _arguments: JsonObject) -> None:
    """Accept edited arguments."""


def _newer(agent: Process, attempt: str, broker: Broker) -> AttemptSlots:
    known = agent.seen.get(attempt, AttemptSlots())
    return AttemptSlots(
        broker.started.get(attempt, known.started), broker.finished.get(attempt, known.finished)
    )


def start_of(conversation_id: str, run_id: str, message_id: str, plan: Plan, content: str = "go") -> StartRun:
    return StartRun(
        tenant=TENANT,
        conversation_id=conversation_id,
        run_id=run_id,
        message_id=message_id,
        content=content,
        settings=plan.settings(),
        user="ann",
        first=plan.first,
    )
