"""One sample of each message that is stored or sent between services, with every field set.

python -m tests.contracts.messages.samples      # rewrite tests/contracts/messages/golden/
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from banksman.contracts import administration, approvals, calls, events, usage, work, workspaces
from banksman.contracts.assistants import (
    ApprovalRule,
    ApprovalTerms,
    Escalation,
    Limits,
    ModelOptions,
    RunSettings,
    ToolSettings,
)
from banksman.contracts.errors import ErrorCode
from banksman.contracts.messages import FilePart, ImagePart, TextPart, Usage
from banksman.contracts.tools import PathChange, ToolCall, ToolResult
from banksman.contracts.workflows import TableOutput
from banksman.contracts.workspaces import AssistantFile

GOLDEN = Path(__file__).parent / "golden"
TS = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
LATER = datetime(2026, 1, 9, 3, 4, 5, tzinfo=UTC)

SETTINGS = RunSettings(
    assistant_id="default",
    assistant_revision=3,
    service="banksman",
    model="demo:demo",
    system_prompt_id="p1",
    system_prompt="Be brief.",
    options=ModelOptions(max_tokens=1000, temperature=0.5),
    tools=ToolSettings(
        enabled=True,
        allowed_tools=("bash",),
        max_iterations=5,
        tool_protocol="native",
        final_summary=True,
        on_reject="feedback",
    ),
    tool_protocol="json_text",
    limits=Limits(run_timeout_s=60, calls_per_reply=4, max_tokens_per_run=9000, max_cost_usd=1.5),
    approval_policy=(ApprovalRule(tool="bash", arguments={"command": "ls *"}, action="auto"),),
    variables={"service": "pumps"},
)
CALL = ToolCall(
    id="k1",
    name="bash",
    arguments={"command": "ls"},
    provider_call_id="toolu_1",
    terminate=True,
    requires_approval=True,
    idempotent=False,
    timeout_s=30,
    server="weather",
)
RESULT = ToolResult(
    tool_call_id="k1",
    content={"success": False, "error": "exit code 2"},
    is_error=True,
    error_kind="tool_error",
    exit_code=2,
    truncated=True,
    output_ref="k1-1",
    output_key="ab" * 32,
    duration_ms=12,
    runner="runner-1",
    started_at=TS,
    changed=(PathChange(path="a.txt", change="created"),),
)
USAGE = Usage(
    input_tokens=10,
    output_tokens=5,
    cached_tokens=2,
    cache_written_tokens=3,
    cache_written_1h_tokens=1,
    cost_usd=0.01,
)
CONTENT = (TextPart(text="Look"), ImagePart(url="data:,", media_type="image/png"), FilePart(path="a.txt"))
ITEM = approvals.ApprovalItem(
    tool_call_id="k1",
    name="bash",
    arguments={"command": "ls"},
    digest=CALL.digest,
    editable=True,
    preview=approvals.Preview(
        kind="command", command="ls", url="https://a", path="a.txt", old="1", new="2", text="t"
    ),
)
DECISION = approvals.ItemDecision(
    tool_call_id="k1", decision="approve", arguments={"command": "ls -l"}, reason="ok"
)

BODIES: tuple[events.EventBody, ...] = (
    events.RunQueued(position=1, message_id="m1", message=CONTENT, settings=SETTINGS),
    events.RunStarted(message_id="m1", message="Hello", settings=SETTINGS),
    events.IterationStarted(n=1, max=5),
    events.MessageCompleted(
        message_id="m2",
        role="assistant",
        content="Done",
        finish_reason="stop",
        protocol="json_text",
        provider="demo",
        provider_state={"signature": "s"},
        usage=USAGE,
    ),
    events.ProtocolRetry(
        attempt=1,
        max=3,
        error="position 1",
        message_id="m3",
        reply="{",
        correction="One object.",
        usage=USAGE,
    ),
    events.ReasoningCompleted(message_id="m3", text="First I think.", characters=14, duration_s=1.5),
    events.ModelNotice(
        kind="repaired", text="The arguments of bash were repaired: a code fence was removed."
    ),
    events.ToolCallRequested(call=CALL, arguments_error="not JSON"),
    approvals.ApprovalRequested(approval_id="a1", expires_at=LATER, items=(ITEM,)),
    approvals.ApprovalResolved(
        approval_id="a1", outcome="approved", by="ann", decisions=(DECISION,), remember="run"
    ),
    approvals.ApprovalEscalated(approval_id="a1", users=("eve",), by="ann"),
    approvals.ApprovalForgotten(approval_id="a1", by="ann"),
    events.ToolCallCompleted(result=RESULT),
    events.WorkspaceChanged(paths=(PathChange(path="a.txt", change="created"),)),
    events.HistoryCut(first_missing=7, set_aside=4),
    events.WorkspaceRestored(snapshot_ts=TS, lost_calls=("k1",), term=2),
    events.HistoryCompacted(
        message_id="m4",
        how="summarised",
        summary="They talked.",
        kept_from=4,
        tokens_before=90_000,
        tokens_after=9_000,
        model="demo:demo",
        usage=USAGE,
    ),
    events.CancelRequested(reason="enough", by="ann"),
    events.RunFinished(
        status="failed",
        content="It failed.",
        service="banksman",
        model="demo:demo",
        iterations=2,
        tool_calls=(
            events.TrackedCall(tool="bash", params={"command": "ls"}, result={"success": True}, iteration=1),
        ),
        max_iterations_reached=True,
        usage=USAGE,
        error=events.RunError(code=ErrorCode.PROVIDER_ERROR, message="It failed."),
    ),
    events.WorkflowProgress(step=1, total=3, message="Reading"),
    events.WorkflowLinked(workflow="report", workflow_run_id="w1-r1", workflow_conversation_id="w1"),
    events.WorkflowOutput(
        output=TableOutput(title="Files", columns=("file", "ok"), rows=(("a.py", True),)),
    ),
    approvals.InputRequested.model_validate(
        {
            "request_id": "i1",
            "message": "How many?",
            "schema": {"type": "integer"},
            "tool_call_id": "k1",
            "expires_at": LATER,
        }
    ),
    approvals.InputResolved(request_id="i1", value=3, by="ann"),
    events.ConversationUpdated(title="Pumps", status="deleted", request_id="rename-1"),
)

START = work.StartRun(
    tenant="acme",
    conversation_id="c1",
    run_id="c1-r1",
    message_id="m1",
    content=CONTENT,
    settings=SETTINGS,
    user="ann",
)
OWNER = events.Owner(agent="agent-1", owner_epoch=2, work_seq=7)


def samples() -> Iterator[tuple[str, BaseModel]]:
    """Return the samples by the name of their golden file."""
    for body in BODIES:
        yield f"event.{body.type}", body
    event = events.Event(seq=4, ts=TS, run_id="c1-r1", iteration=1, data=BODIES[2])
    first: dict[str, Any] = {"ts": TS, "id": "e1", "log_epoch": "l1", "first_seq": 4, "owner_epoch": 2}
    yield "commit", events.Commit(**first, owner=OWNER, claim=True, events=(event,))
    yield (
        "commit.snapshot",
        events.Commit(**first, owner=None, snapshot=events.Snapshot(form="f1", state="eJw=", ref="s1")),
    )
    archive = events.Archive(parts=("p1", "p2"), commits=7)
    yield "commit.archive", events.Commit(**first, owner=None, archive=archive)
    counted = usage.UsageCount(
        begins=date(2026, 1, 2), requests=2, input_tokens=30, output_tokens=4, cost_usd=0.25
    )
    yield "usage", usage.UsageTotals(upto=9, as_of=TS, day=counted, month=counted, stored_bytes=5_000)
    yield from _integrity()
    yield from _work()
    yield from _calls()
    yield from _workspaces()


def _integrity() -> Iterator[tuple[str, BaseModel]]:
    yield "heads.mark", administration.HeadsMark(generation="g1")
    yield "heads.segment", administration.HeadsSegment(heads={"acme.c1": 7})
    damaged = administration.DamagedLog(
        tenant="acme", conversation_id="c1", problem="it is gone", found_at=TS
    )
    yield "damaged", damaged


def _work() -> Iterator[tuple[str, BaseModel]]:
    run: dict[str, Any] = {"tenant": "acme", "conversation_id": "c1", "run_id": "c1-r1"}
    conversation: dict[str, Any] = {"tenant": "acme", "conversation_id": "c1"}
    yield "work.start", START
    yield "work.resume", work.ResumeRun(**run, cause="a1", owner_epoch=2)
    yield "signal.cancel", work.CancelRun(**run, reason="enough", by="ann")
    yield (
        "signal.steer",
        work.SteerRun(**conversation, message_id="m5", content="And this", start=START, by="ann"),
    )
    yield "signal.escalate", work.EscalateApproval(**conversation, approval_id="a1", by="ann")
    yield "approval.link", work.LinkUse(by="ann", answer_id="answer-1", at=TS)
    yield "approval.aside", work.SetAside(by="ann", at=TS)
    yield "signal.forget", work.ForgetDecision(**conversation, approval_id="a1", by="ann")
    yield "signal.rename", work.RenameConversation(**conversation, title="Pumps", request_id="rename-1")
    asked, replied = (work.ImportedMessage(message_id=name, content="text") for name in ("m6", "m7"))
    imported = work.ImportedRun(
        run_id="c1-r9", message=asked, replies=(replied,), status="completed", model="openai:gpt"
    )
    signal = work.ImportConversation(**conversation, settings=START.settings, runs=(imported,))
    yield "signal.import", signal
    title = events.ConversationUpdated(title="Pumps")
    stated = events.Event(seq=1, ts=TS, imported=True, data=title)
    yield "signal.import_events", work.ImportEvents(**conversation, events=(stated,))
    yield "signal.delete", work.DeleteConversation(**conversation, by="ann")
    yield "signal.archive", work.ArchiveConversation(**conversation, unused_since=TS)
    yield "approval.request", work.ApprovalRequest(**run, approval_id="a1", expires_at=LATER, items=(ITEM,))
    reply = work.ApprovalReply(
        **run,
        approval_id="a1",
        outcome="approved",
        by="ann",
        decisions=(DECISION,),
        remember="conversation",
        digests=(CALL.digest,),
        decided_at=TS,
        answer_id="answer-1",
        signature="00ff",
    )
    yield "approval.reply", reply
    first = work.FirstApproval(
        **run,
        approval_id="a1",
        by="ben",
        decisions=(DECISION,),
        remember="conversation",
        digests=(CALL.digest,),
        decided_at=TS,
        answer_id="answer-0",
        signature="ff00",
    )
    yield "approval.first", first
    yield "approval.reply.second", reply.model_copy(update={"first": first})
    terms = ApprovalTerms(
        approvers=2, escalation=Escalation(after_s=600, when_set_aside=True, users=("eve",))
    )
    yield (
        "approval.request.terms",
        work.ApprovalRequest(
            **run, approval_id="a1", expires_at=LATER, items=(ITEM,), terms=terms, escalates_at=TS
        ),
    )
    dead: dict[str, Any] = {
        "subject": "run.work.acme.c1",
        "stream": "RUNS",
        "stream_seq": 7,
        "reason": "not JSON",
    }
    yield "dead", work.DeadLetter(**dead, payload_base64="e30=", headers={"h": "v"}, ts=TS)


def _calls() -> Iterator[tuple[str, BaseModel]]:
    request = calls.CallRequest(
        tenant="acme",
        conversation_id="c1",
        run_id="c1-r1",
        attempt="k1-1",
        call=CALL,
        digest=CALL.digest,
        runner_epoch=4,
        deadline=LATER,
        left_s=290.5,
        progress=False,
        workspace="c2",
        place=workspaces.WorkspacePlacement(term=2, generation=7),
    )
    yield "call.request", request
    yield "call.answer", calls.CallReply(answer="refused", reason="no sandbox")
    started = calls.CallStarted(
        conversation_id="c1", attempt="k1-1", runner="runner-1", runner_epoch=4, ts=TS
    )
    yield "call.started", started
    yield (
        "call.void",
        calls.CallStarted(conversation_id="c1", attempt="k1-1", runner=None, void=True, moved=True, ts=TS),
    )
    yield "call.finished", calls.CallFinished(conversation_id="c1", attempt="k1-1", result=RESULT)
    yield (
        "call.late",
        calls.LateResult(
            tenant="acme",
            conversation_id="c1",
            run_id="c1-r1",
            attempt="k1-1",
            tool="bash",
            digest="ab" * 32,
            runner="runner-1",
            runner_epoch=4,
            ended_at=TS,
            result=RESULT,
        ),
    )
    yield "call.cancel", calls.CancelCall(attempt="k1-1", reason="timeout")


def _workspaces() -> Iterator[tuple[str, BaseModel]]:
    copy = workspaces.SnapshotRef(
        id="s1", manifest_digest="ab" * 32, created_at=TS, size=700, key="cd" * 32, stored_by="runner-1"
    )
    yield "workspace.removal", workspaces.ObjectRemoval(store="workspaces", name="runner-1:acme/c1/s1")
    yield "workspace.removed", workspaces.ObjectRemovalReply(removed=True)
    yield (
        "workspace.owner",
        workspaces.WorkspaceOwner(
            runner="runner-1",
            runner_epoch=4,
            term=2,
            generation=7,
            dirty=True,
            snapshot=copy,
            gone_since=LATER,
            loss=workspaces.WorkspaceLoss(term=2, snapshot_ts=TS, reason="broken"),
            assistant="as1",
            assistant_revision=3,
        ),
    )
    yield (
        "workspace.manifest",
        workspaces.SnapshotManifest(
            tenant="acme",
            conversation_id="c1",
            id="s1",
            created_at=TS,
            term=2,
            generation=7,
            parts=(workspaces.SnapshotPart(size=700, digest="cd" * 32),),
            files=3,
            size=9_000,
            sealed=True,
        ),
    )
    yield (
        "workspace.report",
        workspaces.WorkspaceReport(
            runner_epoch=4,
            term=2,
            generation=7,
            snapshot=copy,
            complete=True,
            lost="broken",
            starts=True,
            missing=True,
            missing_at=7,
        ),
    )
    yield "workspace.snapshot", workspaces.WorkspaceReport(runner_epoch=4, term=2, snapshot=copy)
    first = AssistantFile(path="bin/run", encoding="base64", executable=True, content="/w==")
    yield (
        "workspace.verdict",
        workspaces.WorkspaceReportReply(mine=True, dirty=False, snapshot=copy, files=(first,)),
    )


def written(sample: BaseModel) -> str:
    """Return the text of the golden file: the wire format, indented."""
    on_wire = json.loads(sample.model_dump_json(by_alias=True))
    return json.dumps(on_wire, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all golden files and remove those without a sample."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for old in GOLDEN.glob("*.json"):
        old.unlink()
    for name, sample in samples():
        (GOLDEN / f"{name}.json").write_text(written(sample), encoding="utf-8")


if __name__ == "__main__":
    main()
