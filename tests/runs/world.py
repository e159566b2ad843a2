"""A simulated world for the protocol: a broker, agents, a gateway and a runner, one await at a time.

The procedures of `banksman.runs` are coroutines over ports. Here every port call is an `Op` that the test
applies, delays, or crashes around, so each interleaving is chosen by the test and none by an event loop.
"""

from __future__ import annotations

import itertools

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from banksman.agent.loop import drive
from banksman.contracts.assistants import RunSettings, ToolSettings
from banksman.contracts.calls import CallAnswer, CallFinished, CallRequest, CallStarted
from banksman.contracts.errors import CallerMistake, Fenced, NotReady
from banksman.contracts.events import (
    ApprovalItem,
    ApprovalRequested,
    Commit,
    EventBody,
    MessageCompleted,
    Preview,
    RunFinished,
    ToolCallCompleted,
    ToolCallRequested,
)

from banksman.contracts.messages import AssistantMessage, ToolMessage
from banksman.contracts.tools import ToolCall, ToolResult, failed
from banksman.contracts.work import ApprovalReply, ApprovalRequest, CancelRun, ResumeRun, StartRun, SteerRun
from banksman.runs import approvals, handlers
from banksman.runs.door import RequestNote, Verdict, decide, once
from banksman.runs.owner import Build, Ownership, accept
from banksman.runs.ports import Facts, Placement, Ports
from banksman.runs.runner import CallDesk
from banksman.runs.state import Conversation, apply_commit

TENANT = "acme"
KEY = b"a signing key of the simulated gateways"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 3.0


@dataclass
class Op:
    """One thing a process asks of the world; the test decides when, and whether, it happens."""

    label: str
    do: Callable[[], Any]
    ready: Callable[[], bool] = lambda: True
    wakes_at: datetime | None = None

    def __await__(self) -> Generator[Op, Any, Any]:
        return (yield self)


@dataclass
class Task:
    """A coroutine of a process and the op it stands at."""

    process: Process
    name: str
    coroutine: Coroutine[Op, Any, Any]
    op: Op | None = None
    holds: Message | None = None

    def start(self) -> None:
        self._advance(lambda: self.coroutine.send(None))

    def step(self) -> None:
        """Apply the op it stands at and run on to the next."""
        op = self.op
        assert op is not None
        try:
            value = op.do()
        except CallerMistake as error:
            self._advance(lambda error=error: self.coroutine.throw(error))
            return
        except NotReady as error:
            self._advance(lambda error=error: self.coroutine.throw(error))
            return
        self._advance(lambda: self.coroutine.send(value))

    def _advance(self, go: Callable[[], Op]) -> None:
        try:
            self.op = go()
        except StopIteration:
            self.op = None
            self.process.tasks.remove(self)


@dataclass
class Process:
    """Something that may crash: it loses its tasks and its memory, nothing else."""

    name: str
    kind: str
    generation: int = 1
    up: bool = True
    tasks: list[Task] = field(default_factory=list)
    seen: dict[str, Facts] = field(default_factory=dict)
    attention: set[str] = field(default_factory=set)
    desk: CallDesk | None = None
    lease_lost: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}-{self.generation}"

    def crash(self) -> None:
        for task in self.tasks:
            task.coroutine.close()
        self.tasks.clear()
        self.seen.clear()
        self.attention.clear()
        self.desk = None
        self.up = False


@dataclass
class Message:
    """A message of a work queue."""

    seq: int
    body: Any
    acked: bool = False
    holder: Task | None = None


@dataclass
class Plan:
    """What the model does in one run: for each iteration its calls, then a final answer."""

    iterations: tuple[tuple[tuple[str, bool], ...], ...]
    """Per call: tool name (`effect` or `pure`) and whether it must ask."""


class World:
    """The broker and everybody on it."""

    def __init__(self, *, lossy: Callable[[], bool] = lambda: False) -> None:
        self.now = EPOCH
        self.lossy = lossy
        self.ids = itertools.count(1)
        self.seqs = itertools.count(1)
        self.logs: dict[str, list[tuple[int, Commit]]] = {}
        self.work: list[Message] = []
        self.signals: list[Message] = []
        self.replies: list[Message] = []
        self.recent_ids: set[str] = set()
        self.started: dict[str, tuple[CallStarted, str]] = {}
        self.finished: dict[str, CallFinished] = {}
        self.requests: dict[str, ApprovalRequest] = {}
        self.answers: dict[str, ApprovalReply] = {}
        self.notes: dict[str, RequestNote] = {}
        self.plans: dict[str, Plan] = {}
        self.effects: list[str] = []
        self.accepted: set[str] = set()
        self.told: dict[str, str] = {}
        self.agents = [Process("agent-a", "agent"), Process("agent-b", "agent")]
        self.gateway = Process("gateway", "gateway")
        self.runner = Process("runner", "runner")
        self.zombies: list[Process] = []
        self.lease: tuple[int, datetime] = (0, EPOCH)
        self.boot_runner()

    # -- processes -----------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        return [*self.agents, self.gateway, self.runner, *self.zombies]

    def boot_runner(self) -> None:
        runner = self.runner
        runner.up = True
        runner.lease_lost = False
        epoch = self.lease[0] + 1
        runner.generation = epoch
        runner.desk = CallDesk(
            "runner-1",
            epoch,
            _RunnerSlots(self, runner),
            capacity=3,
            now=lambda: self.now,
            may_start=lambda: not runner.lease_lost,
        )
        self.lease = (epoch, self.now + timedelta(days=365))

    def restart(self, process: Process) -> None:
        if process.up:
            return
        process.generation += 1
        process.up = True
        if process is self.runner:
            self.boot_runner()

    def pause_runner(self) -> None:
        """The runner is cut off: its lease ends, another process takes over, and it wakes up as a zombie."""
        zombie = self.runner
        zombie.lease_lost = True
        self.zombies.append(zombie)
        self.runner = Process("runner", "runner", generation=zombie.generation)
        self.boot_runner()

    def spawn(self, process: Process, name: str, coroutine: Coroutine[Op, Any, Any], holds: Message | None = None) -> None:
        task = Task(process, name, coroutine, holds=holds)
        process.tasks.append(task)
        if holds is not None:
            holds.holder = task
        task.start()

    def ready_tasks(self) -> list[Task]:
        return [t for p in self.processes for t in p.tasks if t.op is not None and t.op.ready()]

    def advance_to_next_wake(self) -> bool:
        wakes = [t.op.wakes_at for p in self.processes for t in p.tasks if t.op is not None and t.op.wakes_at]
        later = [moment for moment in wakes if moment > self.now]
        if not later:
            return False
        self.now = min(later)
        return True

    # -- the broker ----------------------------------------------------------------------------------------

    def fold(self, conversation_id: str) -> Conversation:
        state = Conversation(TENANT, conversation_id)
        for seq, commit in self.logs.get(conversation_id, []):
            state = apply_commit(state, seq, commit)
        return state

    def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        log = self.logs.setdefault(state.conversation_id, [])
        last = log[-1][0] if log else 0
        if last != state.stream_seq:
            return None
        commit = Commit.model_validate_json(commit.model_dump_json())
        seq = next(self.seqs)
        log.append((seq, commit))
        self.wake(state.conversation_id)
        return apply_commit(state, seq, commit)

    def wake(self, conversation_id: str) -> None:
        for agent in self.agents:
            if agent.up and not self.lossy():
                agent.attention.add(conversation_id)

    def publish(self, queue: list[Message], msg_id: str, body: Any) -> None:
        if msg_id in self.recent_ids:
            return
        self.recent_ids.add(msg_id)
        queue.append(Message(next(self.seqs), body))

    def duplicate(self, queue: list[Message], index: int) -> None:
        """The duplicate window passed, or the broker lost its memory of it: the same message twice."""
        if queue:
            queue.append(Message(next(self.seqs), queue[index % len(queue)].body))

    def store_slot(self, kind: str, attempt: str, conversation_id: str) -> None:
        for agent in self.agents:
            if agent.up and not self.lossy():
                facts = agent.seen.get(attempt, Facts())
                started = self.started[attempt][0] if attempt in self.started else facts.started
                agent.seen[attempt] = Facts(started, self.finished.get(attempt, facts.finished))
                agent.attention.add(conversation_id)

    def deliver(self, queue: list[Message], index: int, agent: Process) -> bool:
        """Hand a message to an agent: for the first time, or again because its holder went silent."""
        open_messages = [message for message in queue if not message.acked]
        if not open_messages or not agent.up:
            return False
        message = open_messages[index % len(open_messages)]
        handler = self._handle_work if queue is self.work else self._handle_signal
        if queue is self.replies:
            handler = self._handle_reply
        self.spawn(agent, "deliver", handler(agent, message), holds=message)
        return True

    def undelivered(self, queue: list[Message]) -> list[int]:
        """Positions (among the open messages) of those nobody works on."""
        open_messages = [message for message in queue if not message.acked]
        return [i for i, m in enumerate(open_messages) if m.holder is None or m.holder not in m.holder.process.tasks]

    # -- agents --------------------------------------------------------------------------------------------

    def ports(self, agent: Process) -> Ports:
        ports = _AgentPorts(self, agent)
        return Ports(agent.id, ports, _Log(self), _Slots(self), _Approvals(self), _Work(self), _Runners(self), ports, KEY)

    async def _handle_work(self, agent: Process, message: Message) -> None:
        ports = self.ports(agent)
        try:
            owned = await accept(ports, message.body, message.seq)
            if owned is not None:
                await drive(owned, self._think)
        except Fenced:
            return
        await self._ack(message)

    async def _handle_signal(self, agent: Process, message: Message) -> None:
        ports = self.ports(agent)
        match message.body:
            case CancelRun() as cancel:
                await handlers.on_cancel(ports, cancel)
            case SteerRun() as steer:
                await handlers.on_steer(ports, steer)
        await self._ack(message)

    async def _handle_reply(self, agent: Process, message: Message) -> None:
        reply: ApprovalReply = message.body
        assert approvals.problem(reply, self.requests.get(reply.approval_id), KEY) is None
        await handlers.on_decision(self.ports(agent), reply)
        await self._ack(message)

    async def _ack(self, message: Message) -> None:
        def ack() -> None:
            message.acked = True

        await Op("ack", ack)

    async def _think(self, owned: Ownership) -> Build:
        run_id, n = owned.run.run_id, owned.run.iteration
        await Op("model", lambda: None)
        iterations = self.plans[run_id].iterations
        calls = iterations[n - 1] if n <= len(iterations) else ()
        made = [
            (ToolCall(id=f"k{next(self.ids)}", name=name, idempotent=name == "pure", requires_approval=asks), asks)
            for name, asks in calls
        ]
        message_id, approval_id = f"m{next(self.ids)}", f"a{next(self.ids)}"
        expires = self.now + timedelta(days=7)

        def build(state: Conversation) -> tuple[EventBody, ...]:
            if state.run is None or state.run.cancel is not None:
                return ()
            said = MessageCompleted(message_id=message_id, role="assistant", content=None if made else "done")
            items = tuple(
                ApprovalItem(
                    tool_call_id=call.id,
                    name=call.name,
                    arguments=call.arguments,
                    digest=call.digest,
                    preview=Preview(kind="text", text=call.name),
                )
                for call, asks in made
                if asks
            )
            question = ApprovalRequested(approval_id=approval_id, expires_at=expires, items=items)
            requested = [ToolCallRequested(call=call) for call, _ in made]
            return (said, *requested, question) if items else (said, *requested)

        return build

    # -- the gateway and its clients -----------------------------------------------------------------------

    def client_start(self, conversation_id: str, request_id: str, plan: Plan) -> None:
        if self.gateway.up:
            self.spawn(self.gateway, "start", self._start(conversation_id, request_id, plan))

    async def _start(self, conversation_id: str, request_id: str, plan: Plan) -> None:
        memory = _Memory(self)
        fresh = {"run_id": f"{conversation_id}-r{next(self.ids)}", "message_id": f"m{next(self.ids)}"}
        ids = await once(memory, TENANT, request_id, request_id.encode(), fresh)
        work = start_of(conversation_id, ids["run_id"], ids["message_id"])
        self.plans.setdefault(ids["run_id"], plan)
        await Op("publish start", lambda: self.publish(self.work, f"start:{work.run_id}", work))
        await Op("ack client", lambda: self.accepted.add(work.run_id))

    def client_decide(self, approval_id: str, verdict: Verdict) -> None:
        if self.gateway.up:
            self.spawn(self.gateway, "decide", self._decide(approval_id, verdict))

    async def _decide(self, approval_id: str, verdict: Verdict) -> None:
        try:
            stored, _ = await decide(_GatewaySlots(self), _Clock(self), KEY, TENANT, approval_id, verdict, {})
        except (NotReady, CallerMistake):
            return

        def tell() -> None:
            assert self.told.setdefault(approval_id, stored.outcome) == stored.outcome

        await Op("tell client", tell)

    def client_signal(self, request_id: str, signal: CancelRun | SteerRun) -> None:
        self.publish(self.signals, f"signal:{request_id}", signal)

    # -- the runner ----------------------------------------------------------------------------------------

    async def execute(self, request: CallRequest) -> ToolResult:
        runner = f"runner-{request.runner_epoch}"

        def effect() -> None:
            self.effects.append(request.call.id)

        await Op("effect", effect)
        await Op("effect ends", lambda: None)
        return ToolResult(tool_call_id=request.call.id, content={"success": True}, runner=runner)

    # -- what must hold ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Invariants that hold after every single step."""
        for conversation_id, log in self.logs.items():
            seqs = [event.seq for _, commit in log for event in commit.events]
            assert seqs == list(range(1, len(seqs) + 1)), f"{conversation_id}: events {seqs}"
            epochs = [c.owner_epoch for _, c in log if c.claim]
            assert epochs == sorted(set(epochs)), f"{conversation_id}: claims {epochs}"
            ends = [e.run_id for _, c in log for e in c.events if isinstance(e.data, RunFinished)]
            assert len(ends) == len(set(ends)), f"{conversation_id}: terminal twice {ends}"
            results = [e.data.result.tool_call_id for e in self.events(conversation_id, ToolCallCompleted)]
            assert len(results) == len(set(results)), f"{conversation_id}: result twice {results}"
        repeated = {call for call in self.effects if self.effects.count(call) > 1} - self.pure_calls()
        assert not repeated, f"executed more than once: {repeated}"

    def check_end(self) -> None:
        """What holds once all is quiet and everybody is up."""
        ended = {e.run_id for c in self.logs for e in self.events(c, RunFinished)}
        assert self.accepted <= ended, f"accepted without an end: {self.accepted - ended}"
        for conversation_id in self.logs:
            state = self.fold(conversation_id)
            assert state.run is None and not state.queue and state.owner is None
            self._check_history(state)
            for event in self.events(conversation_id, ToolCallCompleted):
                self._check_result(event.data.result)
        asked = {e.data.approval_id for c in self.logs for e in self.events(c, ApprovalRequested)}
        assert asked <= set(self.answers), f"questions left open: {asked - set(self.answers)}"

    def _check_history(self, state: Conversation) -> None:
        expected: list[str] = []
        for message in state.history:
            if isinstance(message, ToolMessage):
                assert expected and expected.pop(0) == message.result.tool_call_id
            else:
                assert not expected, f"calls without a result before {message}"
                expected = [c.id for c in message.calls] if isinstance(message, AssistantMessage) else []
        assert not expected, f"calls without a result at the end: {expected}"

    def _check_result(self, result: ToolResult) -> None:
        executed = result.tool_call_id in self.effects
        if not result.is_error:
            assert executed, f"{result.tool_call_id} succeeded without being executed"
        elif result.runner is None and result.error_kind in ("rejected", "denied", "not_executed", "cancelled"):
            assert not executed or result.tool_call_id in self.pure_calls(), f"{result} was executed"

    def events(self, conversation_id: str, kind: type) -> list[Any]:
        return [e for _, c in self.logs[conversation_id] for e in c.events if isinstance(e.data, kind)]

    def pure_calls(self) -> set[str]:
        calls = [e.data.call for c in self.logs for e in self.events(c, ToolCallRequested)]
        return {call.id for call in calls if call.idempotent}

    # -- running until all is quiet ------------------------------------------------------------------------

    def settle_down(self, *, most: int = 20_000) -> None:
        """No more faults: everybody is up, people answer, silent holders lose their messages."""
        for process in self.processes:
            self.restart(process)
        for _ in range(most):
            ready = self.ready_tasks()
            if ready:
                ready[0].step()
                self.check()
                continue
            if self._deliver_something() or self._answer_something():
                continue
            if not self.advance_to_next_wake():
                return
        raise AssertionError(f"not quiet after {most} steps: {[(t.name, t.op) for t in self.ready_tasks()]}")

    def _deliver_something(self) -> bool:
        for queue in (self.work, self.signals, self.replies):
            waiting = self.undelivered(queue)
            if waiting:
                return self.deliver(queue, waiting[0], self.agents[waiting[0] % 2])
        return False

    def _answer_something(self) -> bool:
        for approval_id in self.requests:
            if approval_id not in self.answers:
                self.client_decide(approval_id, Verdict(by="ann", all="approve"))
                return True
        return False


def start_of(conversation_id: str, run_id: str, message_id: str) -> StartRun:
    settings = RunSettings(
        assistant_id="default", model="demo:demo", tools=ToolSettings(enabled=True, max_iterations=4)
    )
    return StartRun(
        tenant=TENANT,
        conversation_id=conversation_id,
        run_id=run_id,
        message_id=message_id,
        content="go",
        settings=settings,
        user="ann",
    )


class _Clock:
    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> datetime:
        return self.world.now

    def new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self.world.ids)}"


class _AgentPorts(_Clock):
    def __init__(self, world: World, agent: Process) -> None:
        super().__init__(world)
        self.agent = agent

    def facts(self, attempt: str) -> Facts:
        return self.agent.seen.get(attempt, Facts())

    async def wait(self, tenant: str, conversation_id: str, until: datetime) -> None:
        agent, world = self.agent, self.world

        def ready() -> bool:
            return conversation_id in agent.attention or world.now >= until

        await Op("wait", lambda: agent.attention.discard(conversation_id), ready, until)


@dataclass
class _Log:
    world: World

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        return await Op("read log", lambda: self.world.fold(conversation_id))

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        return await Op("append", lambda: self.world.append(state, commit))


@dataclass
class _Slots:
    world: World

    async def put_started(self, tenant: str, started: CallStarted) -> CallStarted:
        def put() -> CallStarted:
            stored, _ = self.world.started.setdefault(started.attempt, (started, "owner"))
            self.world.store_slot("started", started.attempt, started.conversation_id)
            return stored

        return await Op("put started", put)

    async def put_result(self, tenant: str, finished: CallFinished) -> CallFinished:
        def put() -> CallFinished:
            stored = self.world.finished.setdefault(finished.attempt, finished)
            self.world.store_slot("result", finished.attempt, finished.conversation_id)
            return stored

        return await Op("put result", put)

    async def read(self, tenant: str, attempt: str) -> Facts:
        def read() -> Facts:
            started = self.world.started.get(attempt)
            return Facts(started[0] if started else None, self.world.finished.get(attempt))

        return await Op("read slots", read)

    async def forget(self, tenant: str, attempts: tuple[str, ...]) -> None:
        def forget() -> None:
            for attempt in attempts:
                self.world.started.pop(attempt, None)
                self.world.finished.pop(attempt, None)

        await Op("forget", forget)


@dataclass
class _RunnerSlots:
    world: World
    process: Process

    async def start(self, tenant: str, started: CallStarted) -> bool:
        def put() -> bool:
            mine = started.attempt not in self.world.started
            if mine:
                self.world.started[started.attempt] = (started, self.process.id)
                self.world.store_slot("started", started.attempt, started.conversation_id)
            return mine

        return await Op("start", put)

    async def finish(self, tenant: str, finished: CallFinished) -> None:
        def put() -> None:
            self.world.finished.setdefault(finished.attempt, finished)
            self.world.store_slot("result", finished.attempt, finished.conversation_id)

        await Op("finish", put)


@dataclass
class _Approvals:
    world: World

    async def ask(self, request: ApprovalRequest) -> None:
        await Op("ask", lambda: self.world.requests.setdefault(request.approval_id, request))

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        return await Op("settle approval", lambda: _settle(self.world, reply))

    async def discard(self, reply: ApprovalReply, reason: str) -> None:
        await Op("discard", lambda: None)


def _settle(world: World, reply: ApprovalReply) -> ApprovalReply:
    if reply.approval_id not in world.answers:
        world.answers[reply.approval_id] = reply
        world.replies.append(Message(next(world.seqs), reply))
    return world.answers[reply.approval_id]


@dataclass
class _GatewaySlots:
    world: World

    async def read(self, tenant: str, approval_id: str) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        def read() -> tuple[ApprovalRequest | None, ApprovalReply | None]:
            return self.world.requests.get(approval_id), self.world.answers.get(approval_id)

        return await Op("read approval", read)

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        return await Op("settle approval", lambda: _settle(self.world, reply))


@dataclass
class _Memory:
    world: World

    async def remember(self, tenant: str, request_id: str, note: RequestNote) -> RequestNote:
        return await Op("remember", lambda: self.world.notes.setdefault(request_id, note))


@dataclass
class _Work:
    world: World

    async def publish(self, work: StartRun | ResumeRun) -> None:
        msg_id = f"start:{work.run_id}" if isinstance(work, StartRun) else f"resume:{work.cause}"
        await Op("publish work", lambda: self.world.publish(self.world.work, msg_id, work))

    async def nudge(self, tenant: str, conversation_id: str) -> None:
        await Op("nudge", lambda: self.world.wake(conversation_id))


@dataclass
class _Runners:
    world: World

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        def place() -> Placement | None:
            return Placement("runner-1", self.world.lease[0]) if self.world.runner.up else None

        return await Op("place", place)

    async def alive(self, placement: Placement) -> bool:
        return await Op(
            "alive", lambda: self.world.runner.up and self.world.lease[0] == placement.runner_epoch
        )

    async def call(self, placement: Placement, request: CallRequest) -> CallAnswer | None:
        def call() -> CallAnswer | None:
            runner = self.world.runner
            if not runner.up or runner.desk is None or self.world.lossy():
                return None
            answer, perform = runner.desk.admit(CallRequest.model_validate_json(request.model_dump_json()))
            if perform:
                self.world.spawn(runner, "perform", runner.desk.perform(request, self.world.execute))
            return None if self.world.lossy() else answer

        return await Op("call", call)

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        def cancel() -> None:
            runner = self.world.runner
            for task in list(runner.tasks):
                op = task.op
                if runner.up and op is not None and op.label == "effect ends" and _attempt_of(task) == attempt:
                    task.coroutine.close()
                    runner.tasks.remove(task)
                    call_id = attempt.rpartition("-")[0]
                    ended = failed(call_id, "cancelled", "ended").model_copy(update={"runner": "runner-1"})
                    done = CallFinished(conversation_id="c", attempt=attempt, result=ended)
                    self.world.finished.setdefault(attempt, done)

        await Op("cancel", cancel)


def _attempt_of(task: Task) -> str:
    frame: Any = task.coroutine.cr_frame  # type: ignore[attr-defined]  # a coroutine object has its frame
    return frame.f_locals["request"].attempt


