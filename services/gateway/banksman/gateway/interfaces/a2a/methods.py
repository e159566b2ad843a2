"""The methods of A2A. A task is a run, a context is a conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from banksman.contracts.errors import BadInput
from banksman.contracts.events import Event
from banksman.contracts.frames import ApprovalDecision, ChatSend, ConversationCreate, InputReply, RunCancel
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.messages import BY_AGENT
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.interfaces.a2a import models
from banksman.gateway.interfaces.a2a.tasks import OWN, TaskUpdates, task
from banksman.gateway.live.followed_runs import FollowedRun, FollowedRuns, OpenRequests
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import Listing
from banksman.gateway.runs.bodies import STATES, JsonDict, Run, TaskReceiver

CANCEL_WAIT_S = 5.0
"""Seconds that `CancelTask` waits for the end of the run."""
DETAIL = "steps"
SIGNATURE = "standard-webhooks"
"""The scheme under which a new configuration returns the key of its signatures."""


@dataclass(frozen=True, slots=True)
class FollowedTask:
    """A task, and the run whose events update it; None if the run has ended."""

    first: JsonDict
    updates: TaskUpdates
    run: FollowedRun | None

    async def results(self) -> AsyncIterator[JsonDict]:
        yield {"task": self.first}
        if self.run is None:
            return
        async with aclosing(self.run.frames()) as frames:
            async for frame in frames:
                for update in self.updates.of(json.loads(frame)):
                    yield update
                if self.updates.complete:
                    return


@dataclass(frozen=True, slots=True)
class Methods:
    followed: FollowedRuns
    caller: Caller

    @property
    def dispatcher(self) -> Dispatcher:
        return self.followed.dispatcher

    async def send(self, message: models.A2aMessage) -> FollowedTask:
        return await (self._continue(message) if message.task_id else self._start(message))

    async def subscribe(self, named: models.NamedTask) -> FollowedTask:
        found, view = await self._read(named.id)
        if found.finished_at is not None:
            raise models.RpcError(models.UNSUPPORTED_OPERATION, f"task {named.id!r} has ended")
        return await self._followed(found, view)

    async def get(self, run_id: str, history_length: int | None = None) -> JsonDict:
        """Return a task, with its last `history_length` messages; all messages by default."""
        return await self._task(*await self._read(run_id), history_length)

    async def cancel(self, named: models.NamedTask) -> JsonDict:
        found, _ = await self._read(named.id)
        if found.finished_at is not None:
            raise models.RpcError(models.TASK_NOT_CANCELABLE, f"task {named.id!r} has ended")
        frame = RunCancel(type="run.cancel", id=new_id("a2a-"), run_id=named.id)
        await self.dispatcher.handle(self.caller, frame)
        return await self._task(*await self._read(named.id, CANCEL_WAIT_S))

    async def list(self, wanted: models.ListTasks) -> JsonDict:
        """Return a page of a context's tasks, without artifacts and histories."""
        if not wanted.context_id:
            raise BadInput("contextId", None, "the context whose tasks are listed")
        found: Listing[Run] = await self.dispatcher.request(
            "run.list", self.caller, conversation_id=wanted.context_id
        )
        of_state = [run for run in found.items if wanted.status in ("", STATES[run.status])]
        start = int(wanted.page_token or 0)
        size = wanted.page_size or models.ListTasks().page_size
        page = of_state[start : start + size]
        end = start + len(page)
        return {
            "tasks": [task(run, ConversationView(), (), run.conversation_id) for run in page],
            "nextPageToken": str(end) if end < len(of_state) else "",
            "pageSize": len(page),
            "totalSize": len(of_state),
        }

    async def _start(self, message: models.A2aMessage) -> FollowedTask:
        async with self.dispatcher.one_start(self.caller):
            return await self._started(message)

    async def _started(self, message: models.A2aMessage) -> FollowedTask:
        content = models.content_of(message)
        conversation_id = message.context_id
        if not conversation_id:
            creation = ConversationCreate(
                type="conversation.create",
                id=f"{models.request_id(message)}:c",
                assistant=_assistant(message),
            )
            created = await self.dispatcher.handle(self.caller, creation, title_from=content)
            conversation_id = created.conversation_id or ""
        chat = ChatSend(
            type="chat.send",
            id=models.request_id(message),
            conversation_id=conversation_id,
            content=content,
            provenance=BY_AGENT,
        )
        view = await self.followed.views.read(self.caller.tenant, conversation_id)
        updates = _updates(view, "", conversation_id)
        run = await self.followed.start(self.caller, chat, DETAIL)
        updates.run_id = run.run_id
        # The task begins the stream; the artifacts follow as updates.
        submitted = {"id": run.run_id, "contextId": conversation_id, "status": {"state": STATES["queued"]}}
        return FollowedTask(submitted, updates, run)

    async def _continue(self, message: models.A2aMessage) -> FollowedTask:
        found, view = await self._read(message.task_id)
        if message.context_id not in ("", found.conversation_id):
            raise BadInput("message.contextId", message.context_id, "the context of the task")
        answer = models.answer_of(message, message.task_id, view)
        if answer is not None:
            return await self._answered(found, view, answer)
        if found.finished_at is not None:
            raise models.RpcError(models.UNSUPPORTED_OPERATION, f"task {message.task_id!r} has ended")
        chat = ChatSend(
            type="chat.send",
            id=models.request_id(message),
            conversation_id=found.conversation_id,
            content=models.content_of(message),
            mode="steer",
            provenance=BY_AGENT,
        )
        followed = await self._followed(found, view)
        return await self._handled(followed, chat)

    async def _answered(
        self, found: Run, view: ConversationView, answer: ApprovalDecision | InputReply
    ) -> FollowedTask:
        named = answer.model_copy(update={"conversation_id": found.conversation_id})
        if found.finished_at is not None:
            # The message repeats an earlier one, whose decision or value let the run end.
            await self.dispatcher.handle(self.caller, named)
            return FollowedTask(await self._task(found, view), _updates(view, "", ""), None)
        return await self._handled(await self._followed(found, view), named)

    async def _handled(
        self, followed: FollowedTask, request: ChatSend | ApprovalDecision | InputReply
    ) -> FollowedTask:
        """Handle a request, and return the task that it updates: `followed`, or the task of a new run."""
        run = followed.run
        try:
            ack = await self.dispatcher.handle(self.caller, request)
            if run is None or ack.run_id == run.run_id:
                return followed
        except BaseException:
            if run is not None:
                await run.feed.close()
            raise
        # The run ended before the message arrived, so the message started a new run.
        await run.feed.close()
        return await self._followed(*await self._read(ack.run_id or ""))

    async def _followed(self, found: Run, view: ConversationView) -> FollowedTask:
        run_id, conversation_id = found.run_id, found.conversation_id
        run = await self.followed.open_run(self.caller, conversation_id, run_id, view.last_seq, DETAIL)
        return FollowedTask(await self._task(found, view), _updates(view, run_id, conversation_id), run)

    async def _read(self, run_id: str, wait_s: float = 0) -> tuple[Run, ConversationView]:
        found: Run = await self.dispatcher.request("run.read", self.caller, run_id=run_id, wait_s=wait_s)
        return found, await self.followed.views.as_sent(self.caller.tenant, found.conversation_id)

    async def _task(self, found: Run, view: ConversationView, history_length: int | None = None) -> JsonDict:
        run, events = view.runs.get(found.run_id), tuple[Event, ...]()
        if run is not None and run.first_seq:
            stored = await self.followed.views.events(
                self.caller.tenant, found.conversation_id, after_seq=run.first_seq - 1
            )
            events = stored.events
        body = task(run or found, view, events, found.conversation_id)
        if history_length is not None and "history" in body:
            body["history"] = body["history"][-history_length:] if history_length else []
        return body


def _updates(view: ConversationView, run_id: str, conversation_id: str) -> TaskUpdates:
    return TaskUpdates(run_id, conversation_id, OpenRequests.of(view))


def _assistant(message: models.A2aMessage) -> str:
    own = message.metadata.get(OWN)
    named = own.get("assistant", "default") if isinstance(own, dict) else "default"
    return check_token(str(named), "message.metadata.banksman.assistant")


def supports_push(dispatcher: Dispatcher) -> bool:
    return dispatcher.has("task_receiver.create")


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """The methods for push notifications, for one caller. Each raises `RpcError` without webhooks."""

    dispatcher: Dispatcher
    caller: Caller

    async def create(self, task_id: str, config: models.PushTarget) -> JsonDict:
        """Store a configuration. Only this response has the key with which its messages are signed."""
        receiver = TaskReceiver(
            run_id=task_id, config_id=config.id or new_id("p"), url=config.url, headers=_headers(config)
        )
        secret: str = await self._request("task_receiver.create", receiver=receiver)
        return {**_config(receiver), "authentication": {"scheme": SIGNATURE, "credentials": secret}}

    async def get(self, named: models.NamedConfig) -> JsonDict:
        return _config(await self._request("task_receiver.read", run_id=named.task_id, config_id=named.id))

    async def list(self, wanted: models.ListConfigs) -> JsonDict:
        found: list[TaskReceiver] = await self._request("task_receiver.list", run_id=wanted.task_id)
        return {"configs": [_config(one) for one in found]}

    async def delete(self, named: models.NamedConfig) -> JsonDict:
        """Delete a configuration; a missing one is no error, by the specification."""
        await self._request("task_receiver.delete", run_id=named.task_id, config_id=named.id)
        return {}

    async def _request(self, name: str, **arguments: Any) -> Any:
        if not supports_push(self.dispatcher):
            raise models.RpcError(models.PUSH_NOT_SUPPORTED, "this server sends no push notifications")
        return await self.dispatcher.request(name, self.caller, **arguments)


def _headers(config: models.PushTarget) -> dict[str, str]:
    headers = {"x-a2a-notification-token": config.token} if config.token else {}
    wanted = config.authentication
    if wanted is not None and wanted.credentials:
        headers["authorization"] = f"{wanted.scheme} {wanted.credentials}"
    return headers


def _config(receiver: TaskReceiver) -> JsonDict:
    return {"taskId": receiver.run_id, "id": receiver.config_id, "url": receiver.url}
