"""Users that continuously start, decide, cancel and steer runs, and record what they receive."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import JsonValue

from banksman.contracts.ids import new_id
from banksman.contracts.wire import JsonObject
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.plans import (
    ASSISTANTS,
    WORKFLOW,
    WORKFLOW_KINDS,
    Kind,
    Plan,
    command,
    filled_in,
    plan,
)
from tests.support.chaos.requests import Requests
from tests.support.chaos.simulated_user import (
    GIVE_UP_S,
    Frame,
    RequestFailed,
    SimulatedUser,
    Subscription,
    seen,
)
from tests.support.history.records import Calm, Effect, Recording, Violation
from tests.support.model_server import ModelServer
from tests.support.polling import scripted_delay

USERS = 4
MAX_OPEN = 60
"""Active runs above which no user starts another: the test measures loss, not overload."""
READ_LEDGERS_EVERY_S = 1.0
END_S = 120.0
"""Seconds after the last fault, or after the last end of a run, within which another one must end."""


@dataclass(eq=False)
class _Run:
    """A run that a user waits for."""

    plan: Plan
    user: SimulatedUser
    conversation_id: str
    run_ids: set[str] = field(default_factory=set[str])
    """The started run, and those of further messages."""
    acted: set[str] = field(default_factory=set[str])
    """Approval requests with a decision, so that no user decides twice."""
    finished: set[str] = field(default_factory=set[str])
    """Runs of this conversation that have ended; a run may end before its acknowledgement arrives."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def ended(self) -> None:
        """Wait for the end of all requested runs."""
        while not self.run_ids <= self.finished:
            self.changed.clear()
            await self.changed.wait()


@dataclass
class Traffic:
    """The actions of users on a fleet. The recording contains everything that they receive."""

    fleet: Fleet
    model: ModelServer
    recording: Recording
    chance: random.Random
    rate: float
    """Runs started per second."""
    kinds: tuple[Kind, ...] = ()
    """The permitted kinds; all if empty."""
    give_up_s: float = GIVE_UP_S
    """Seconds after which a request without a reply is a problem."""
    user_count: int = USERS
    """One of them follows at most 200 conversations at a time."""
    users: list[SimulatedUser] = field(default_factory=list[SimulatedUser])
    conversations: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    """Errors that a client must not get: refusals, and requests without a reply."""
    _open: dict[str, _Run] = field(default_factory=dict[str, _Run])
    """By conversation."""
    _form: JsonObject = field(default_factory=dict[str, JsonValue])
    """The form of the workflow's parameters."""
    _group: asyncio.TaskGroup | None = None
    _known_effects: set[str] = field(default_factory=set[str])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __post_init__(self) -> None:
        self._requests = Requests(self.recording)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start runs while the block runs; afterwards, wait until all have ended."""
        await self._prepare()
        async with asyncio.TaskGroup() as group:
            self._group = group
            connections = [group.create_task(user.live()) for user in self.users]
            reading = group.create_task(self._record_effects())
            starting = group.create_task(self._start_runs())
            try:
                yield
                starting.cancel()
                self.recording.add(Calm(waiting=len(self._tasks)))
                await self._all_ended()
                await self._read_again()
            finally:
                for task in (*connections, reading, starting):
                    task.cancel()
                for task in self._tasks:
                    task.cancel()
        self.read_ledgers()
        for violation in self.model.violations:
            self.recording.add(Violation(text=f"{violation.message} ({violation.model})"))

    @property
    def open_runs(self) -> int:
        """Return the number of runs whose end no user has received."""
        return len(self._open)

    async def start(self, kind: Kind | None = None) -> None:
        """Start a run as one user, and follow its plan."""
        chosen = plan(self.chance, new_id("mark-"), kind)
        user = self.chance.choice(self.users)
        self._spawn(self._follow(chosen, user))

    def read_ledgers(self) -> None:
        """Record the effects of all executions so far."""
        # Path.glob fails if a folder is removed during its search.
        for line in self._ledger_lines():
            words = line.split()
            if len(words) == 3 and line not in self._known_effects:
                self._known_effects.add(line)
                self.recording.add(Effect(marker=words[0], execution=words[1], at=float(words[2])))

    def _ledger_lines(self) -> Iterator[str]:
        for file in (*self.fleet.ledgers(), self.fleet.ledger):
            with contextlib.suppress(OSError):
                yield from file.read_text().splitlines()

    async def _prepare(self) -> None:
        # Earlier effects are not part of this recording.
        self._known_effects.update(self._ledger_lines())
        async with self._http(self.fleet.urls[0]) as http:
            for name, fields in ASSISTANTS.items():
                response = await http.post("/context/assistants", json={"id": name, **fields})
                assert response.status_code in (201, 409), response.text
            self._form = (await http.get(f"/workflows/{WORKFLOW}")).json()["parameters_schema"]
        for number in range(self.user_count):
            chance = random.Random(self.chance.random())
            name = f"user-{number + 1}"
            headers = self.fleet.canaries.headers
            self.users.append(
                SimulatedUser(
                    name,
                    self.fleet.urls,
                    self.recording,
                    chance,
                    self._on_event,
                    headers=headers,
                    give_up_s=self.give_up_s,
                )
            )

    def _http(self, url: str) -> httpx.AsyncClient:
        headers = self.fleet.canaries.headers
        return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=20)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None
        task = self._group.create_task(self._record_problems(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record_problems(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (RequestFailed, TimeoutError) as problem:
            self.problems.append(f"{type(problem).__name__}: {problem}")

    async def _start_runs(self) -> None:
        while True:
            if len(self._open) < MAX_OPEN:
                kind = self.chance.choice(self.kinds) if self.kinds else None
                await self.start(kind)
            await scripted_delay(self.chance.expovariate(self.rate))

    async def _follow(self, chosen: Plan, user: SimulatedUser) -> None:
        if chosen.kind in WORKFLOW_KINDS:
            await self._follow_workflow(chosen, user)
        else:
            await self._follow_chat(chosen, user)

    async def _follow_chat(self, chosen: Plan, user: SimulatedUser) -> None:
        conversation_id = await self._create(chosen, user)
        async with self._waiting_for(chosen, user, conversation_id) as run:
            await self._interfere(run, await self._send(run, "go"))
            await run.ended()

    async def _follow_workflow(self, chosen: Plan, user: SimulatedUser) -> None:
        async with AsyncExitStack() as stack:
            where = None
            if chosen.kind == "workflow-here":
                where = await self._create(chosen, user)
                await stack.enter_async_context(self._waiting_for(chosen, user, where))
            parameters, fits = filled_in(self._form, self.chance, chosen), chosen.kind != "workflow-misfit"
            try:
                started = await self._requests.start_workflow(
                    user, WORKFLOW, parameters, fits=fits, conversation_id=where
                )
            except RequestFailed as refused:
                if fits or refused.code != "bad_request":
                    raise
                return
            own = str(started["conversation_id"])
            self.conversations.append(own)
            run = await stack.enter_async_context(self._waiting_for(chosen, user, own))
            run.run_ids.add(str(started["run_id"]))
            if chosen.kind == "workflow-cancel":
                await scripted_delay(chosen.think_s)
                await self._requests.cancel(user, str(started["run_id"]))
            await run.ended()

    @asynccontextmanager
    async def _waiting_for(
        self, chosen: Plan, user: SimulatedUser, conversation_id: str
    ) -> AsyncGenerator[_Run]:
        """Follow a conversation from its first event during the block."""
        run = self._open[conversation_id] = _Run(chosen, user, conversation_id)
        try:
            await user.follow(conversation_id)
            yield run
        finally:
            self._open.pop(conversation_id, None)
        await user.leave(conversation_id)

    async def _create(self, chosen: Plan, user: SimulatedUser) -> str:
        name = f"m{chosen.marker.removeprefix('mark-')}"
        self.model.play(name, chosen.replies, at_end="repeat")
        settings = {"tool_protocol": "json_text" if chosen.json_text else "native"}
        created = await user.request(
            {
                "type": "conversation.create",
                "assistant": chosen.assistant,
                "model": f"openai:scripted/{name}",
                "settings": settings,
                "detail": "full",
            }
        )
        conversation_id = str(created["conversation_id"])
        self.conversations.append(conversation_id)
        return conversation_id

    async def _send(self, run: _Run, text: str, *, mode: str = "queue") -> str:
        response = await self._requests.send(run.user, run.conversation_id, text, mode=mode)
        run.run_ids.add(str(response["run_id"]))
        return str(response["run_id"])

    async def _interfere(self, run: _Run, run_id: str) -> None:
        """Cancel, steer, or send another message; also send one to verify a remembered decision."""
        if run.plan.kind not in ("cancel", "cancel-approval", "steer", "queue", "remember"):
            return
        await scripted_delay(run.plan.think_s)
        match run.plan.kind:
            case "steer":
                await self._send(run, "and hurry", mode="steer")
            case "queue":
                await self._send(run, "and another thing")
            case "remember":
                await run.ended()
                await self._send(run, "again")
            case _:
                await self._requests.cancel(run.user, run_id)

    def _on_event(self, frame: Frame) -> None:
        run = self._open.get(frame["conversation_id"])
        if run is None:
            return
        if frame["type"] == "run.finished":
            run.finished.add(frame["run_id"])
            run.changed.set()
        if frame["type"] == "approval.requested":
            self._spawn(self._decide(run, frame["data"]))

    async def _decide(self, run: _Run, request: Frame) -> None:
        if run.plan.verdict == "ignore" or request["approval_id"] in run.acted:
            return
        run.acted.add(request["approval_id"])
        await scripted_delay(run.plan.think_s)
        decide, approval_id = self._requests.decide, request["approval_id"]
        match run.plan.verdict:
            case "race":
                other = self.chance.choice(self.users)
                async with asyncio.TaskGroup() as racing:
                    racing.create_task(decide(run.user, approval_id, {"all": "approve"}))
                    racing.create_task(decide(other, approval_id, {"all": "reject"}))
            case "edit":
                edited = {"command": command(f"{run.plan.marker}-edited")}
                decisions = [
                    {"tool_call_id": item["tool_call_id"], "decision": "approve", "arguments": edited}
                    for item in request["items"]
                ]
                await decide(run.user, approval_id, {"decisions": decisions})
            case verdict:
                await decide(run.user, approval_id, {"all": verdict}, remember=run.plan.remember)

    async def _record_effects(self) -> None:
        while True:
            self.read_ledgers()
            await scripted_delay(READ_LEDGERS_EVERY_S)

    async def _all_ended(self) -> None:
        """Wait until everything that was started has ended, for as long as its number becomes smaller."""
        fewest, deadline = len(self._tasks), time.monotonic() + END_S
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if len(self._tasks) < fewest:
                fewest, deadline = len(self._tasks), time.monotonic() + END_S
        for run in self._open.values():
            self.problems.append(f"{run.plan.kind} runs {run.run_ids} of {run.conversation_id} is open")

    async def _read_again(self) -> None:
        """Read every conversation again, over HTTP and through another gateway, as a separate reader."""
        await self.fleet.ready()
        async with self._http(self.fleet.urls[-1]) as http:
            for conversation_id in self.conversations:
                await self._read_log(http, conversation_id)

    async def _read_log(self, http: httpx.AsyncClient, conversation_id: str) -> None:
        position = Subscription()
        while True:
            path = f"/context/conversations/{conversation_id}/events"
            response = (await http.get(path, params={"after_seq": position.last, "detail": "full"})).json()
            for frame in response["items"]:
                self.recording.add(seen(f"final {conversation_id}", position, frame))
                position.last = frame["seq"]
            if response.get("next") is None:
                return
