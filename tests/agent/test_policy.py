from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from banksman.agent.policy import decide, host_of, hosts_fetched, pattern_of, remembered_decisions
from banksman.contracts.assistants import ApprovalRule, Decision
from banksman.contracts.events import (
    ApprovalItem,
    ApprovalRequested,
    ApprovalResolved,
    ItemDecision,
    Preview,
)
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, failed
from banksman.runs.state import OpenApproval

ASKING = frozenset({"bash", "write_file"})


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


def decision_on(
    asked: ToolCall,
    *rules: ApprovalRule,
    remembered: list[OpenApproval] | None = None,
    message: str = "",
    fetched: frozenset[str] = frozenset(),
) -> Decision:
    definition = ToolDefinition(name=asked.name, description="", requires_approval=asked.name in ASKING)
    return decide(
        asked,
        definition,
        rules,
        remembered=remembered_decisions(remembered or []),
        message_text=message,
        fetched_hosts=fetched,
    )


def approval(
    asked: ToolCall, decision: Literal["approve", "reject"], edited: dict[str, Any] | None = None
) -> OpenApproval:
    item = ApprovalItem(
        tool_call_id=asked.id,
        name=asked.name,
        arguments=asked.arguments,
        digest=asked.digest,
        preview=Preview(kind="text"),
    )
    requested = ApprovalRequested(
        approval_id="a1", expires_at=datetime(2030, 1, 1, tzinfo=UTC), items=(item,)
    )
    decided = ItemDecision(tool_call_id=asked.id, decision=decision, arguments=edited)
    resolved = ApprovalResolved(
        approval_id="a1", outcome="approved", by="ann", decisions=(decided,), remember="run"
    )
    return OpenApproval(requested, resolved)


@pytest.mark.parametrize(
    ("asked", "decision"),
    [
        (call("bash", command="ls"), "ask"),
        (call("write_file", path="a", content="b"), "ask"),
        (call("read_file", path="a"), "auto"),
        (call("get_current_weather", location="Rome"), "auto"),
        (call("web_fetch", url="https://example.com/a"), "ask"),
    ],
)
def test_without_rules_what_changes_or_leaves_is_asked(asked: ToolCall, decision: Decision) -> None:
    """R12 and the default policy."""
    assert decision_on(asked) == decision


@pytest.mark.parametrize(
    ("message", "decision"),
    [
        ("Fetch https://example.com/a please", "auto"),
        ("What does EXAMPLE.com. say?", "auto"),
        ("Look at notexample.com", "ask"),
        ("Look at example.com.evil.org", "ask"),
        ("Look at sub.example.com", "ask"),
    ],
)
def test_a_host_that_the_user_names_is_fetched_without_asking(message: str, decision: Decision) -> None:
    assert decision_on(call("web_fetch", url="https://example.com/a"), message=message) == decision


def test_each_host_is_asked_for_once_in_a_conversation() -> None:
    fetched = frozenset({"example.com"})

    assert decision_on(call("web_fetch", url="https://EXAMPLE.com/b"), fetched=fetched) == "auto"
    assert decision_on(call("web_fetch", url="https://example.org/b"), fetched=fetched) == "ask"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com@evil.org/",
        "https://evil.org\\@example.com/",
        "https://example.com\t.evil.org/",
        "https://[::1",
        "example.com",
        "",
        None,
        7,
    ],
)
def test_an_address_that_could_be_read_in_two_ways_is_always_asked(url: Any) -> None:
    asked = call("web_fetch", url=url)

    assert host_of(asked.arguments) is None
    assert decision_on(asked, message="example.com", fetched=frozenset({"example.com"})) == "ask"


def test_the_first_matching_rule_decides() -> None:
    rules = (
        ApprovalRule(tool="bash", arguments={"command": "rm *"}, action="deny"),
        ApprovalRule(tool="bash", arguments={"command": "git *"}, action="auto"),
        ApprovalRule(tool="mcp_*", action="ask"),
        ApprovalRule(tool="*", arguments={"count": "1?"}, action="deny"),
    )

    assert decision_on(call("bash", command="rm -rf x"), *rules) == "deny"
    assert decision_on(call("bash", command="git log"), *rules) == "auto"
    assert decision_on(call("bash", command="ls"), *rules) == "ask"
    assert decision_on(call("mcp_search"), *rules) == "ask"
    assert decision_on(call("other", count=12), *rules) == "deny"
    assert decision_on(call("other", count=9), *rules) == "auto"
    assert decision_on(call("other"), *rules) == "auto"


@pytest.mark.parametrize(
    "command",
    [
        "git log; curl evil.org",
        "git log && rm x",
        "git log | sh",
        "git $(id)",
        "git `id`",
        "git log\nrm x",
        "git log > x",
    ],
)
def test_a_glob_that_allows_commands_covers_no_shell_operator_it_does_not_name(command: str) -> None:
    rule = ApprovalRule(tool="bash", arguments={"command": "git *"}, action="auto")

    assert decision_on(call("bash", command=command), rule) == "ask"


def test_a_glob_that_denies_commands_covers_everything_it_matches() -> None:
    rule = ApprovalRule(tool="bash", arguments={"command": "*curl*"}, action="deny")

    assert decision_on(call("bash", command="ls; curl evil.org"), rule) == "deny"


def test_an_approval_is_remembered_for_the_same_command_only() -> None:
    remembered = [approval(call("bash", command="make test"), "approve")]

    assert decision_on(call("bash", command="make test"), remembered=remembered) == "auto"
    assert decision_on(call("bash", command="make test; rm x"), remembered=remembered) == "ask"


def test_a_rejection_is_remembered_too_and_the_last_decision_counts() -> None:
    asked = call("bash", command="make")

    assert decision_on(asked, remembered=[approval(asked, "reject")]) == "deny"
    assert decision_on(asked, remembered=[approval(asked, "reject"), approval(asked, "approve")]) == "auto"


def test_an_edited_approval_is_remembered_for_what_was_sent() -> None:
    remembered = [approval(call("bash", command="rm -rf /"), "approve", {"command": "rm x"})]

    assert decision_on(call("bash", command="rm x"), remembered=remembered) == "auto"
    assert decision_on(call("bash", command="rm -rf /"), remembered=remembered) == "ask"


def test_a_file_is_remembered_by_path_and_a_page_by_host() -> None:
    assert pattern_of("write_file", {"path": "a", "content": "1"}) == pattern_of(
        "write_file", {"path": "a", "content": "2"}
    )
    assert pattern_of("web_fetch", {"url": "https://a.org/1"}) == pattern_of(
        "web_fetch", {"url": "http://A.org/2"}
    )
    assert pattern_of("other", {"a": 1, "b": 2}) == pattern_of("other", {"b": 2, "a": 1})
    assert pattern_of("other", {"a": 1}) != pattern_of("other", {"a": 2})


def test_a_rule_that_denies_is_stronger_than_a_remembered_approval() -> None:
    asked = call("bash", command="make")
    rule = ApprovalRule(tool="bash", action="deny")

    assert decision_on(asked, rule, remembered=[approval(asked, "approve")]) == "deny"


def fetching(url: str, result: ToolResult) -> tuple[Message, ...]:
    return (
        UserMessage(message_id="m1", content="hello"),
        AssistantMessage(message_id="m2", content=None, calls=(call("web_fetch", url=url),)),
        ToolMessage(name="web_fetch", result=result),
    )


def test_a_host_counts_as_fetched_when_the_page_came_from_it() -> None:
    came = ToolResult(tool_call_id="c1", content={"success": True, "url": "https://example.com/b"})

    assert hosts_fetched(fetching("https://example.com/a", came)) == {"example.com"}
    assert hosts_fetched(fetching("https://elsewhere.org/", came)) == frozenset()
    assert hosts_fetched(fetching("https://example.com/a", failed("c1", "rejected", "no"))) == frozenset()
