"""Creates commits of long conversations as an owner does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.request import urlopen

from banksman.bus.storage.log import EventLog
from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import (
    Commit,
    EventBody,
    HistoryCompacted,
    IterationStarted,
    MessageCompleted,
    Owner,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.ids import new_id
from banksman.contracts.messages import Usage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.fold import apply_commit
from banksman.runs.owner import Draft
from banksman.runs.state import Conversation
from tests.support.nats import NatsServer

SETTINGS = RunSettings(assistant_id="default", model="demo:demo")
OWNER = Owner(agent="a1", owner_epoch=1, work_seq=1)


def commit_of(
    state: Conversation,
    run_id: str | None,
    bodies: Iterable[EventBody],
    *,
    owner: Owner | None = None,
    claim: int | None = None,
) -> Commit:
    """Return a commit after `state`."""
    draft = Draft(state, datetime.now(UTC))
    draft.add(run_id, bodies)
    return draft.to_commit(new_id("e"), state.log_epoch or "l1", owner, claim=claim)


@dataclass
class Story:
    """Appends one run after another to a log, in eight commits each."""

    log: ConversationLog
    state: Conversation
    runs: int = 0

    async def commit(self, *bodies: EventBody, claim: bool = False, agent: str = OWNER.agent) -> None:
        """Append one commit."""
        epoch = self.state.owner_epoch + 1 if claim else None
        changes = {"owner_epoch": epoch or max(1, self.state.owner_epoch), "agent": agent}
        owner = OWNER.model_copy(update=changes)
        commit = commit_of(self.state, f"c-r{self.runs}", bodies, owner=owner, claim=epoch)
        stored = await self.log.append(self.state, commit)
        assert stored is not None
        self.state = stored

    async def run(self, *, output: str = "done") -> None:
        """Append one run: two iterations with a call each, and a final reply."""
        self.runs += 1
        n = self.runs
        started = RunStarted(message_id=f"m{n}", message=f"request {n}", settings=SETTINGS)
        await self.commit(started, IterationStarted(n=1, max=10), claim=True)
        for iteration in (1, 2):
            call = ToolCall(id=f"k{n}-{iteration}", name="bash", arguments={"command": f"echo {n}"})
            await self.commit(reply_message(f"m{n}-{iteration}", None), ToolCallRequested(call=call))
            result = ToolResult(tool_call_id=call.id, content={"success": True, "stdout": output})
            await self.commit(ToolCallCompleted(result=result))
            await self.commit(IterationStarted(n=iteration + 1, max=10))
        finished = RunFinished(
            status="completed", content="ok", service="s", model="demo:demo", iterations=3, usage=self.usage
        )
        await self.commit(reply_message(f"m{n}-3", f"reply {n}"), finished)

    async def compact(self) -> None:
        """Replace all but the last four messages."""
        self.runs += 1
        started = RunStarted(message_id=f"m{self.runs}", message="go on", settings=SETTINGS)
        await self.commit(started, claim=True)
        kept_from = len(self.state.history) - 5
        await self.commit(
            HistoryCompacted(
                message_id=f"s{self.runs}",
                how="summarised",
                summary=f"All went well {self.runs} times.",
                kept_from=kept_from,
                tokens_before=1000,
                tokens_after=100,
            )
        )
        finished = RunFinished(
            status="completed", content="ok", service="s", model="demo:demo", iterations=1, usage=self.usage
        )
        await self.commit(reply_message(f"m{self.runs}-1", "fine"), finished)

    @property
    def usage(self) -> Usage:
        return self.state.run.usage if self.state.run else Usage()


def reply_message(message_id: str, text: str | None) -> MessageCompleted:
    """Return a reply of the model."""
    usage = Usage(input_tokens=100, output_tokens=10)
    return MessageCompleted(message_id=message_id, role="assistant", content=text, usage=usage)


async def whole_fold(log: EventLog, tenant: str, conversation: str) -> Conversation:
    """Return the fold of every commit, without a snapshot."""
    state = Conversation(tenant, conversation)
    for stored in await log.read(tenant, conversation, leader=True):
        state = apply_commit(state, stored.stream_seq, stored.commit)
    return state


def received(server: NatsServer, name: str) -> tuple[int, int]:
    """Return the messages and bytes that the server has sent to the connection of that name."""
    with urlopen(f"{server.monitoring_url}/connz?limit=1024", timeout=5) as response:
        connections = json.loads(response.read())["connections"]
    (found,) = [one for one in connections if one.get("name") == name]
    return found["out_msgs"], found["out_bytes"]
