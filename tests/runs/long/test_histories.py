"""Property tests: vendors accept every compacted history, and a snapshot is exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banksman.agent.model.context import KEPT_SHARE, SUMMARY_SHARE, Size, context_tokens, cut, size_of
from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers import anthropic_request, openai_request
from banksman.agent.providers.profiles import Profile
from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import (
    EventBody,
    HistoryCompacted,
    IterationStarted,
    MessageCompleted,
    ProtocolRetry,
    RunFinished,
    RunQueued,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.contracts.workspaces import WorkspaceRestored
from banksman.runs.fold import apply_commit
from banksman.runs.owner import Draft
from banksman.runs.snapshots import UnreadableSnapshot, snapshot_of, state_of
from banksman.runs.state import REMEMBERED_FOR, REMEMBERED_IDS, Conversation, Measured, with_ids
from tests.support.strict_requests.anthropic import check_message
from tests.support.strict_requests.openai import check_chat_completion

BASH = ToolDefinition(name="bash", description="Runs a command.")
SETTINGS = RunSettings(assistant_id="default", model="demo:demo")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.just("word " * 200)


@dataclass
class Log:
    """A log under construction; each commit is folded as a reader folds it."""

    state: Conversation = field(default_factory=lambda: Conversation("t", "c"))
    numbers: int = 0
    compactions: int = 0

    def id(self, prefix: str) -> str:
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    def commit(self, *bodies: EventBody, run_id: str | None = None) -> None:
        run = self.state.run.run_id if self.state.run else None
        draft = Draft(self.state, NOW + timedelta(seconds=self.numbers))
        draft.add(run_id or run, bodies)
        commit = draft.to_commit(self.id("e"), "l1", None)
        self.state = apply_commit(
            self.state, self.state.stream_seq + 1, type(commit).model_validate_json(commit.model_dump_json())
        )

    def start(self, content: Any) -> None:
        if self.state.run is None:
            started = RunStarted(message_id=self.id("m"), message=content, settings=SETTINGS)
            self.commit(started, run_id=self.id("c-r"))

    def begin_iteration(self) -> bool:
        """Begin an iteration; return False if no run is open."""
        run = self.state.run
        if run is not None and not run.asking:
            self.commit(IterationStarted(n=run.iteration + 1, max=1000))
        return run is not None

    def reply(self, text: str | None, results: list[str], tokens: int) -> None:
        if not self.begin_iteration():
            return
        calls = [ToolCall(id=self.id("k"), name="bash", arguments={"command": "ls"}) for _ in results]
        reply = MessageCompleted(
            message_id=self.id("m"), role="assistant", content=text, usage=Usage(input_tokens=tokens)
        )
        self.commit(reply, *(ToolCallRequested(call=call) for call in calls))
        # Results arrive in any order; the fold sorts them.
        for call, text in reversed(list(zip(calls, results, strict=True))):
            result = ToolResult(tool_call_id=call.id, content={"success": True, "stdout": text})
            self.commit(ToolCallCompleted(result=result))

    def retry(self, text: str) -> None:
        if self.begin_iteration():
            self.commit(
                ProtocolRetry(
                    attempt=1, max=3, error="e", message_id=self.id("m"), reply=text, correction="Write JSON."
                )
            )

    def steer(self, text: str) -> None:
        if self.state.run is not None:
            self.commit(MessageCompleted(message_id=self.id("m"), role="user", content=text))

    def restore(self) -> None:
        if self.state.run is not None:
            self.commit(WorkspaceRestored(snapshot_ts=None, lost_calls=("k1",)))

    def finish(self) -> None:
        if self.state.run is not None:
            self.commit(RunFinished(status="completed", content="", service="s", model="m", iterations=1))

    def queue(self, text: str) -> None:
        queued = RunQueued(position=1, message_id=self.id("m"), message=text, settings=SETTINGS)
        self.commit(queued, run_id=self.id("c-q"))

    def compact(self, limit: int, iterations: int | None) -> None:
        """Compact as an agent does, right before a model request."""
        if not self.begin_iteration() or self.state.run is None:
            return
        state, message = self.state, self.state.run.message
        size = size_of(request(state.history), state.history, state.measured)
        chosen = cut(state.history, size, limit=limit, message=message, iterations=iterations)
        if chosen is None:
            return
        self.compactions += 1
        event = HistoryCompacted(
            message_id=self.id("m"),
            how="summarised",
            summary="What was discussed.",
            kept_from=chosen.kept_from,
            tokens_before=chosen.tokens_before,
            tokens_after=0,
            usage=Usage(input_tokens=7),
        )
        self.commit(event)


def request(history: tuple[Message, ...]) -> ModelRequest:
    return ModelRequest("m", "Be brief.", history, (BASH,))


contents = texts | st.just((TextPart(text="look"), ImagePart(url="data:image/png;base64,aGk=")))
actions: st.SearchStrategy[Callable[[Log], None]] = st.one_of(
    contents.map(lambda content: lambda log: log.start(content)),
    st.tuples(st.none() | texts, st.lists(texts, max_size=3), st.integers(0, 5_000)).map(
        lambda args: lambda log: log.reply(*args)
    ),
    texts.map(lambda text: lambda log: log.retry(text)),
    texts.map(lambda text: lambda log: log.steer(text)),
    texts.map(lambda text: lambda log: log.queue(text)),
    st.just(lambda log: log.restore()),
    st.just(lambda log: log.finish()),
    st.tuples(st.integers(10, 400), st.none() | st.integers(0, 4)).map(
        lambda args: lambda log: log.compact(*args)
    ),
)


def check_history(log: Log) -> None:
    """Check the vendors' rules, and that the history contains the message of the open run."""
    history = log.state.history
    missing: list[str] = []
    for message in history:
        match message:
            case ToolMessage(result=result):
                assert missing and missing.pop(0) == result.tool_call_id, "a result does not follow its call"
            case _:
                assert not missing, "a call has no result"
                missing = [call.id for call in getattr(message, "calls", ())]
    assert not missing
    if log.state.run is not None:
        assert log.state.run.message in history, "the history lacks the message of the run"
    for protocol in ("native", "json_text"):
        prepared = protocol_for(protocol).prepare(request(history))
        check_message(json.loads(json.dumps(anthropic_request.body(prepared, "anthropic", Profile()))))
        if history:
            sent = openai_request.body(prepared, "openai", Profile())
            check_chat_completion(json.loads(json.dumps(sent)))


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, min_size=4, max_size=30))
def test_any_compaction_leaves_a_history_that_both_vendors_accept(story: list[Callable[[Log], None]]) -> None:
    log = Log()
    log.start("go")
    for act in (*story, lambda log: log.start("go on"), lambda log: log.compact(150, 1)):
        act(log)
        check_history(log)
        if log.state.compaction is not None:
            first = log.state.history[0]
            assert isinstance(first, UserMessage)
            assert first.message_id == log.state.compaction.message_id


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, min_size=1, max_size=25))
def test_a_snapshot_restores_exactly_the_state(story: list[Callable[[Log], None]]) -> None:
    log = Log()
    for act in story:
        act(log)
    assert state_of(snapshot_of(log.state)) == log.state


def test_a_snapshot_of_another_form_is_refused() -> None:
    other = snapshot_of(Conversation("t", "c")).model_copy(update={"form": "2-0123456789abcdef"})
    with pytest.raises(UnreadableSnapshot, match="form"):
        state_of(other)


def long_log(iterations: int, *, words: int = 400) -> Log:
    log = Log()
    log.start("the task")
    for _ in range(iterations):
        log.reply(None, ["word " * words], 0)
    log.begin_iteration()
    return log


def cut_of(log: Log, *, limit: int, iterations: int | None) -> tuple[tuple[Message, ...], Size]:
    """Return the retained part of a history, and its size."""
    state = log.state
    assert state.run is not None
    size = size_of(request(state.history), state.history, None)
    chosen = cut(state.history, size, limit=limit, message=state.run.message, iterations=iterations)
    assert chosen is not None
    return state.history[chosen.kept_from :], size


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_compaction_keeps_the_last_iterations_verbatim(iterations: int) -> None:
    log = long_log(12)

    kept, _ = cut_of(log, limit=6_000, iterations=iterations)

    assert kept == log.state.history[-2 * iterations :]
    assert sum(isinstance(message, AssistantMessage) for message in kept) == iterations


def test_compaction_keeps_fewer_iterations_if_they_do_not_fit() -> None:
    log = long_log(12)
    kept, size = cut_of(log, limit=3_000, iterations=8)
    assert 0 < sum(size.messages[-len(kept) :]) <= KEPT_SHARE * 3_000


def test_compaction_keeps_no_iteration_if_the_last_one_is_too_long() -> None:
    log = long_log(3, words=4_000)
    kept, _ = cut_of(log, limit=4_000, iterations=4)
    assert kept == ()


def test_without_a_summary_compaction_keeps_the_messages_that_fit() -> None:
    log = long_log(12)
    few, _ = cut_of(log, limit=6_000, iterations=1)
    many, size = cut_of(log, limit=6_000, iterations=None)
    assert len(many) > len(few)
    assert sum(size.messages[-len(many) :]) <= KEPT_SHARE * 6_000


def test_compaction_that_would_save_nothing_is_skipped() -> None:
    """A request that is long for another reason is sent unchanged, and the provider decides."""
    log = Log()
    log.start("word " * 4_000)
    log.begin_iteration()
    state = log.state
    assert state.run is not None
    size = size_of(request(state.history), state.history, None)
    assert cut(state.history, size, limit=1_000, message=state.run.message, iterations=4) is None


def test_a_compaction_is_not_followed_directly_by_another() -> None:
    log = long_log(20)
    log.compact(6_000, 4)
    log.compact(6_000, 4)
    assert log.compactions == 1
    state = log.state
    size = size_of(request(state.history), state.history, state.measured)
    assert size.total <= (KEPT_SHARE + SUMMARY_SHARE) * 6_000 + 200


def test_the_users_task_stays_verbatim_and_other_ids_are_remembered() -> None:
    log = Log()
    log.start("an earlier question")
    log.reply("an earlier answer " * 200, [], 0)
    log.finish()
    log.start("the task")
    for _ in range(12):
        log.reply(None, ["word " * 400], 0)
    log.begin_iteration()
    earlier = log.state.history[0]
    log.compact(4_000, 2)

    state = log.state
    summary, task, *rest = state.history
    assert isinstance(summary, UserMessage) and "What was discussed." in str(summary.content)
    assert isinstance(task, UserMessage) and task.content == "the task"
    assert len(rest) == 4
    assert isinstance(earlier, UserMessage) and earlier.message_id in state.heard
    assert state.run is not None and state.run.usage.input_tokens == 7


def test_a_summary_is_replaced_by_the_next_one() -> None:
    log = long_log(12)
    log.compact(4_000, 2)
    for _ in range(8):
        log.reply(None, ["word " * 400], 0)
    log.compact(4_000, 2)
    summaries = [m for m in log.state.history if isinstance(m, UserMessage) and "summary" in str(m.content)]
    assert log.compactions == 2
    assert len(summaries) == 1


@pytest.mark.parametrize(
    ("model", "overrides", "own", "tokens"),
    [
        ("anthropic:claude-sonnet-4-5", {}, None, 200_000),
        ("openai:gpt-4", {}, None, 8_192),
        ("openai:gpt-4o-mini", {}, None, 128_000),
        ("openai:gpt-4.1-nano", {}, None, 1_047_576),
        ("openai:llama3", {}, None, 128_000),
        ("openai:llama3", {"openai:llama": 8_000, "openai:": 4_000}, None, 8_000),
        ("openai:gpt-4o", {"openai:": 32_000}, None, 32_000),
        ("anthropic:claude-opus-4-5", {"anthropic:": 100_000}, 50_000, 50_000),
    ],
)
def test_the_longest_matching_model_name_of_the_nearest_table_applies(
    model: str, overrides: dict[str, int], own: int | None, tokens: int
) -> None:
    assert context_tokens(model, overrides, own) == tokens


def test_the_vendors_token_count_corrects_the_estimate() -> None:
    log = long_log(4)
    history = log.state.history
    plain = size_of(request(history), history, None)
    first = plain.fixed + sum(plain.messages[:3])

    corrected = size_of(request(history), history, Measured(2 * first, 3))
    absurd = size_of(request(history), history, Measured(1, 3))

    assert corrected.total == pytest.approx(2 * plain.total, rel=0.02)
    assert absurd.total == pytest.approx(plain.total / 2, rel=0.02)


def test_an_image_counts_the_same_for_every_url_length() -> None:
    short, long = (
        (UserMessage(message_id="m", content=(ImagePart(url=f"data:image/png;base64,{'a' * length}"),)),)
        for length in (10, 200_000)
    )
    assert size_of(request(short), short, None).total == size_of(request(long), long, None).total


def test_only_old_ids_followed_by_many_newer_ids_are_forgotten() -> None:
    ids: dict[str, datetime] = {}
    for number in range(REMEMBERED_IDS + 500):
        ids = dict(with_ids(ids, f"r{number}", at=NOW))
    assert len(ids) == REMEMBERED_IDS + 500, "recent ids are never forgotten"
    ids = dict(with_ids(ids, "late", at=NOW + REMEMBERED_FOR + timedelta(seconds=1)))
    assert len(ids) == REMEMBERED_IDS
    assert "late" in ids and f"r{REMEMBERED_IDS + 499}" in ids and "r0" not in ids
    few = with_ids({"old": NOW}, "new", at=NOW + timedelta(days=900))
    assert set(few) == {"old", "new"}, "the last ids are remembered for years"
