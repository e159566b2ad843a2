"""Import of a conversation that was exported as JSON: its messages, on all branches, in a new conversation.

The export comes from a client and is not trusted: calls, approvals, files, usage and costs are omitted, and
no run is driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import (
    Assistant,
    Branch,
    ConversationRecord,
    ConversationSettings,
    RunOverrides,
)
from banksman.contracts.errors import BadInput
from banksman.contracts.events import Outcome
from banksman.contracts.work import ImportConversation, ImportedMessage, ImportedRun
from banksman.gateway.assistants.run_settings import ModelNames, resolve_settings
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.conversations.bodies import ExportedConversation
from banksman.gateway.conversations.conversations import Conversations, new_record, title_of
from banksman.gateway.operation.declaration import CONFLICT, BodyLimit, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import DerivedIds, StoredRequests
from banksman.runs.ports import Clock

MAX_RUNS = 1_000
MAX_TITLE_CHARS = 200
MAX_TEXT_CHARS = 256 * 1024
"""Characters of one message, as in a frame."""
MAX_BYTES = 768 * 1024
"""Bytes of all messages as JSON: they reach an agent as one message of at most 1 MiB."""
OUTCOMES = frozenset(get_args(Outcome))


operations = Operations("conversations")


@dataclass(frozen=True, slots=True)
class Imports:
    conversations: Conversations
    assistants: TenantStore[Assistant]
    requests: StoredRequests
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    models: ModelNames

    @operations.add(
        "conversation.import",
        "POST /context/conversations/import",
        body=BodyLimit.LARGE,
        errors=(CONFLICT,),
        audit=(),
    )
    async def import_conversation(
        self: Service, body: StrictBody[ExportedConversation], caller: CallerDep, request_id: RequestId
    ) -> ConversationRecord:
        """Create a conversation with the messages of an exported one, without its calls, files and costs."""
        # An agent writes them into the log. `BadInput` names the event that is malformed or exceeds a limit.
        fresh = {"conversation_id": self.requests.new("c")}
        ids = await self.requests.once_created(caller, "import", request_id, body, fresh)
        conversation_id = ids["conversation_id"]
        assistant = await self.assistants.get(caller.tenant, "default")
        settings = resolve_settings(
            assistant, ConversationSettings(), RunOverrides(), {}, self.models.of(caller.tenant)
        )
        signal = ImportConversation(
            tenant=caller.tenant,
            conversation_id=conversation_id,
            # Without a prompt, because no model request is made with them.
            settings=settings.model_copy(
                update={"system_prompt": None, "system_prompt_id": None, "variables": {}}
            ),
            runs=runs_in(body.events, conversation_id),
        )
        size = len(signal.model_dump_json())
        if size > MAX_BYTES:
            raise BadInput("events", f"{size} bytes", f"messages of at most {MAX_BYTES} bytes together")
        await self.backlog.logs.check(caller.tenant)
        await self.backlog.check_signal(caller.tenant, size)
        exported = body.conversation.get("title")
        title = exported[:MAX_TITLE_CHARS] if isinstance(exported, str) else ""
        title = title or title_of(signal.runs[0].message.content)
        record = new_record(conversation_id, title, by=caller.user, now=self.clock.now())
        async with self.backlog.starts.place(caller.tenant):
            await self.conversations.create(caller.tenant, record)
            await self.queue.signal(signal, f"import-{conversation_id}")
        return await self.conversations.get(caller.tenant, conversation_id)


Service = Annotated[Imports, provided(Imports)]


def runs_in(events: tuple[Mapping[str, Any], ...], conversation_id: str) -> tuple[ImportedRun, ...]:
    """Return the runs of exported events under new ids, in the order of their starts.

    Runs that have not ended are omitted. The new ids are derived from the conversation and the old ids, so
    that a repeat has the same ids. Raises `BadInput` for no or too many runs, or a malformed event.
    """
    ids = _NewIds(conversation_id)
    open_runs: dict[str, ImportedRun] = {}
    ended: set[str] = set()
    for at, event in enumerate(events):
        run_id, data = event.get("run_id"), event.get("data")
        if not isinstance(run_id, str) or not isinstance(data, Mapping):
            continue
        fields = cast(Mapping[str, Any], data)
        match event.get("type"):
            case "run.started":
                open_runs[run_id] = _started(ids, run_id, fields, at)
            case "message.completed" if run_id in open_runs and fields.get("role") == "assistant":
                open_runs[run_id] = _with_reply(ids, open_runs[run_id], fields, at)
            case "run.finished" if run_id in open_runs:
                open_runs[run_id] = _finished(open_runs[run_id], fields, at)
                ended.add(run_id)
            case _:
                pass
    found = tuple(run for run_id, run in open_runs.items() if run_id in ended)
    if not found:
        raise BadInput("events", len(events), "the events of an exported conversation with a run that ended")
    if len(found) > MAX_RUNS:
        raise BadInput("events", f"{len(found)} runs", f"at most {MAX_RUNS} runs")
    return found


class _NewIds:
    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._messages: dict[str, str] = {}

    def run(self, exported: str) -> str:
        return DerivedIds(exported).new_run(self._conversation_id)

    def message(self, exported: str) -> str:
        new = DerivedIds(f"{self._conversation_id}/{exported}").new("m")
        return self._messages.setdefault(exported, new)

    def branch(self, branch: Any) -> Branch | None:
        """Return the message after which a run continues; None, for the newest, if it is not imported."""
        if not isinstance(branch, Mapping):
            return None
        after = cast(Mapping[str, Any], branch).get("after")
        if after is None:
            return Branch(after=None)
        known = self._messages.get(after) if isinstance(after, str) else None
        return Branch(after=known) if known else None


def _started(ids: _NewIds, run_id: str, data: Mapping[str, Any], at: int) -> ImportedRun:
    branch = ids.branch(data.get("branch"))
    asked = _message(ids, data.get("message_id"), data.get("message"), at)
    model = data.get("model")
    if not isinstance(model, str) or len(model) > 200:
        raise BadInput(f"events[{at}].data.model", model, "the name of a model")
    return ImportedRun(run_id=ids.run(run_id), message=asked, status="cancelled", model=model, branch=branch)


def _with_reply(ids: _NewIds, run: ImportedRun, data: Mapping[str, Any], at: int) -> ImportedRun:
    if not data.get("content"):
        return run
    reply = _message(ids, data.get("message_id"), data["content"], at)
    return run.model_copy(update={"replies": (*run.replies, reply)})


def _finished(run: ImportedRun, data: Mapping[str, Any], at: int) -> ImportedRun:
    status = data.get("status")
    if status not in OUTCOMES:
        raise BadInput(f"events[{at}].data.status", status, f"one of {', '.join(sorted(OUTCOMES))}")
    return run.model_copy(update={"status": status})


def _message(ids: _NewIds, message_id: Any, content: Any, at: int) -> ImportedMessage:
    if not isinstance(message_id, str) or len(message_id) > 200:
        raise BadInput(f"events[{at}].data.message_id", message_id, "the id of a message")
    text = _text(content, at)
    if len(text) > MAX_TEXT_CHARS:
        longest = f"a message of at most {MAX_TEXT_CHARS} characters"
        raise BadInput(f"events[{at}].data", f"{len(text)} characters", longest)
    return ImportedMessage(message_id=ids.message(message_id), content=text)


def _text(content: Any, at: int) -> str:
    """Return the text of a message; files and images of the exported workspace become their names."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadInput(f"events[{at}].data", content, "a message with text or parts")
    parts = [cast(Mapping[str, Any], part) for part in cast(list[Any], content) if isinstance(part, Mapping)]
    return "\n\n".join(_part_text(part) for part in parts)


def _part_text(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type')}: {str(part.get('path', ''))[:200]}]"
