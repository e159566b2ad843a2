"""Converts runs to tasks. Pure.

A task's artifacts are the messages of the agent; an artifact has the id of its message.
"""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.events import (
    ApprovalRequested,
    Event,
    InputRequested,
    MessageCompleted,
    RunFinished,
    RunQueued,
    RunStarted,
)
from banksman.contracts.messages import Content, text_of
from banksman.gateway.conversations.view import ConversationView, RunView
from banksman.gateway.runs.bodies import Run
from banksman.gateway.runs.task_states import JsonDict, status

OWN = "banksman"
"""The key of Banksman's own fields in metadata."""


def task(
    run: Run | RunView, view: ConversationView, events: Iterable[Event], conversation_id: str
) -> JsonDict:
    """Return a task with its artifacts and history.

    Args:
        run: The run, as its log shows it, or as a body if its log has no event yet.
        view: Its conversation.
        events: Stored events, including those of the run.
        conversation_id: The conversation.
    """
    own = [event for event in events if event.run_id == run.run_id]
    outcome = next((event.data for event in own if isinstance(event.data, RunFinished)), None)
    artifacts, history = _artifacts(own, outcome), _history(own, run.run_id, conversation_id)
    waiting = _waiting(run, view)
    message = None
    if waiting is not None:
        message = request_message(waiting, run.run_id, conversation_id)
    elif outcome is not None and outcome.status != "completed":
        message = agent_message(
            f"{run.run_id}-outcome", [text_part(outcome.content)], run.run_id, conversation_id
        )
    body: JsonDict = {
        "id": run.run_id,
        "contextId": conversation_id,
        "status": status(run.status, run.finished_at or run.started_at or run.asked_at, message),
        "metadata": {OWN: {"status": run.status, "iterations": run.iterations}},
    }
    if artifacts:
        body["artifacts"] = artifacts
    if history:
        body["history"] = history
    return body


def request_message(asked: ApprovalRequested | InputRequested, run_id: str, conversation_id: str) -> JsonDict:
    """Return the agent's message that requests a decision or a value."""
    if isinstance(asked, ApprovalRequested):
        text = "Decide about " + ", ".join(
            _described(item.name, item.preview.command) for item in asked.items
        )
        data = {"approval": asked.model_dump(mode="json", exclude={"type"})}
        id = asked.approval_id
    else:
        text, id = asked.message, asked.request_id
        data = {"input": asked.model_dump(mode="json", by_alias=True, exclude={"type"})}
    return agent_message(id, [text_part(text), {"data": data}], run_id, conversation_id)


def agent_message(id: str, parts: list[JsonDict], run_id: str, conversation_id: str) -> JsonDict:
    """Return a message of the agent."""
    return {**_message(id, "ROLE_AGENT", parts), "taskId": run_id, "contextId": conversation_id}


def text_part(text: str) -> JsonDict:
    """Return a part with text."""
    return {"text": text}


def artifact(id: str, text: str) -> JsonDict:
    """Return an artifact with text."""
    return {"artifactId": id, "parts": [text_part(text)]}


def _waiting(run: Run | RunView, view: ConversationView) -> ApprovalRequested | InputRequested | None:
    asked = (*view.approvals.values(), *view.inputs.values())
    return next((one.requested for one in asked if one.run_id == run.run_id), None)


def _artifacts(events: Iterable[Event], outcome: RunFinished | None) -> list[JsonDict]:
    texts = {
        event.data.message_id: text_of(event.data.content)
        for event in events
        if isinstance(event.data, MessageCompleted) and event.data.role == "assistant" and event.data.content
    }
    found = [artifact(id, text) for id, text in texts.items()]
    if outcome is not None and outcome.status == "completed" and outcome.content:
        if not texts or outcome.content != list(texts.values())[-1]:
            found.append(artifact("outcome", outcome.content))
    return found


def _history(events: Iterable[Event], run_id: str, conversation_id: str) -> list[JsonDict]:
    found: dict[str, Content] = {}
    for event in events:
        match event.data:
            case RunQueued(message_id=id, message=content) | RunStarted(message_id=id, message=content):
                found[id] = content
            case MessageCompleted(message_id=id, role="user", content=content) if content is not None:
                found[id] = content
            case _:
                continue
    named = {"taskId": run_id, "contextId": conversation_id}
    return [
        {**_message(id, "ROLE_USER", [text_part(text_of(content))]), **named} for id, content in found.items()
    ]


def _message(id: str, role: str, parts: list[JsonDict]) -> JsonDict:
    return {"messageId": id, "role": role, "parts": parts}


def _described(name: str, command: str | None) -> str:
    return name if command is None else f"{name}: {command}"
