from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalRequested,
    ApprovalResolved,
    Covers,
    ItemDecision,
    Preview,
)
from banksman.contracts.assistants import ApprovalRule, Decision
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import NetworkPolicy, ToolCall, ToolDefinition, ToolResult, failed
from banksman.runs.approval.policy import (
    approval_item,
    coverage,
    decide,
    host_of,
    hosts_fetched,
    pattern_of,
    remembered_decisions,
)
from banksman.runs.state import OpenApproval

NEEDS_APPROVAL = frozenset({"bash", "write_file"})


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


def decision_on(
    requested: ToolCall,
    *rules: ApprovalRule,
    remembered: list[OpenApproval] | None = None,
    message: str = "",
    fetched: frozenset[str] = frozenset(),
) -> Decision:
    definition = ToolDefinition(
        name=requested.name, description="", requires_approval=requested.name in NEEDS_APPROVAL
    )
    return decide(
        requested,
        definition,
        rules,
        remembered=remembered_decisions(remembered or []),
        message_text=message,
        fetched_hosts=fetched,
    )


def approval(
    requested: ToolCall,
    decision: Literal["approve", "reject"],
    edited: dict[str, Any] | None = None,
    covers: Covers | None = None,
) -> OpenApproval:
    item = ApprovalItem(
        tool_call_id=requested.id,
        name=requested.name,
        arguments=requested.arguments,
        digest=requested.digest,
        preview=Preview(kind="text"),
        network=requested.network,
    )
    approval_requested = ApprovalRequested(
        approval_id="a1", expires_at=datetime(2030, 1, 1, tzinfo=UTC), items=(item,)
    )
    decided = ItemDecision(tool_call_id=requested.id, decision=decision, arguments=edited, covers=covers)
    resolved = ApprovalResolved(
        approval_id="a1", outcome="approved", by="ann", decisions=(decided,), remember="run"
    )
    return OpenApproval(approval_requested, resolved)


@pytest.mark.parametrize(
    ("requested", "decision"),
    [
        (call("bash", command="ls"), "ask"),
        (call("write_file", path="a", content="b"), "ask"),
        (call("read_file", path="a"), "auto"),
        (call("get_current_weather", location="Rome"), "auto"),
        (call("web_fetch", url="https://example.com/a"), "ask"),
    ],
)
def test_without_rules_calls_that_change_or_send_data_need_approval(
    requested: ToolCall, decision: Decision
) -> None:
    """R12 and the default policy."""
    assert decision_on(requested) == decision


@pytest.mark.parametrize(
    ("message", "decision"),
    [
        ("Fetch https://example.com/a please", "auto"),
        ("What does EXAMPLE.com. say?", "auto"),
        ("Look at notexample.com", "ask"),
        ("Look at example.com.evil.org", "ask"),
        ("Look at sub.example.com", "ask"),
        *((f"Look at {text}", "ask") for text in (
            "example.com\u200b.evil.org", "example.com\xad-evil.org", "example.com\uff0eevil.org",
            "example.com\u3002evil.org", "example.com\uff61evil.org", "example.com%2eevil.org",
            "evil-\u2060example.com", "me@example.com", "https://example.com@evil.org/",
        )),
        ("Look at example.com\u3002\u8c22\u8c22", "auto"),
        ("Look at\u3000example.com\xa0now", "auto"),
    ],
)  # fmt: skip
def test_host_that_the_user_names_is_fetched_without_approval(message: str, decision: Decision) -> None:
    assert decision_on(call("web_fetch", url="https://example.com/a"), message=message) == decision


def test_each_host_needs_one_approval_per_conversation() -> None:
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
def test_ambiguous_address_always_needs_approval(url: Any) -> None:
    requested = call("web_fetch", url=url)

    assert host_of(requested.arguments) is None
    assert decision_on(requested, message="example.com", fetched=frozenset({"example.com"})) == "ask"


def test_first_matching_rule_decides() -> None:
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


GIT = "git *"


@pytest.mark.parametrize(
    ("glob", "command", "decision"),
    [
        (GIT, "git log main", "auto"),
        (GIT, " git\tshow 'a b' \"c\" HEAD~2 ", "auto"),
        ("git log -*", "git log --oneline -5 main", "auto"),
        ("git log --since=*", "git log --since=2026", "auto"),
        ("ls", "ls", "auto"),
        ("*", "make test", "auto"),
        (GIT, "git", "ask"),
        (GIT, "git -c alias.x=!id x", "ask"),
        (GIT, "git log -c x", "ask"),
        (GIT, "git --exec-path=x log", "ask"),
        (GIT, "git '-c' alias.x=id x", "ask"),
        ("find *", "find . -exec id +", "ask"),
        ("git log -*", "git -c x log -5", "ask"),
        ("ls", "ls x", "ask"),
        ("cat docs/*", "cat docs/../.env", "ask"),
        ("cat docs/*", "cat docs/a ../b", "ask"),
        (GIT, "X=1 git log", "ask"),
        ("*", "GIT_PAGER=id git log", "ask"),
        *((GIT, command, "ask") for command in (
            "git log; curl evil.org", "git log && rm x", "git log | sh", "git $(id)", "git `id`",
            "git log\nrm x",
            "git log > x", "git log < x", "git log & id", "git $X", "git log *", "git log [a]", "git log ?",
            "git log {a,b}", "git log ~/x", "git log --x=~root", "git \\log", 'git "$(id)"', 'git "`id`"',
            'git "a\\"b"', "git (id)", "git !!", "git log #x", "git 'open", "git log\x00",
            "git log\u00a0-c x",
            "git\u2028log", "git log\r", "'git' log;id",
        )),
    ],
)  # fmt: skip
def test_rule_that_allows_commands_matches_words_of_simple_commands(
    glob: str, command: str, decision: Decision
) -> None:
    """P15: any other text is left to a person, also by a rule that names its operators."""
    rules = [ApprovalRule(tool="bash", arguments={"command": glob}, action="auto")]

    assert decision_on(call("bash", command=command), *rules) == decision
    assert decision_on(call("bash", command=["git", "log"]), *rules) == "ask"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("curl evil.org", "deny"),
        ("cu''rl evil.org", "deny"),
        ("  curl  'evil.org'", "deny"),
        ("c$(:)url evil.org", "ask"),
        ("ls; \\curl evil.org", "ask"),
        ("ls docs", "auto"),
    ],
)
def test_rule_that_denies_commands_leaves_what_it_cannot_read_to_a_person(
    command: str, decision: Decision
) -> None:
    """P15: although a later rule allows every command."""
    rules = (
        ApprovalRule(tool="bash", arguments={"command": "curl *"}, action="deny"),
        ApprovalRule(tool="bash", action="auto"),
    )

    assert decision_on(call("bash", command=command), *rules) == decision


def test_glob_that_denies_commands_covers_everything_it_matches() -> None:
    rule = ApprovalRule(tool="bash", arguments={"command": "*curl*"}, action="deny")

    assert decision_on(call("bash", command="ls; curl evil.org"), rule) == "deny"


@pytest.mark.parametrize(
    ("requested", "decision"),
    [
        (call("write_file", path="docs/a.md", content=""), "auto"),
        (call("write_file", path="./docs//a.md", content=""), "auto"),
        (call("write_file", path="docs/../a", content=""), "ask"),
        (call("write_file", path="docs/secret", content=""), "deny"),
        (call("write_file", path="docs/x/../secret", content=""), "deny"),
        (call("web_fetch", url="https://a.example.com/x?y=/"), "auto"),
        (call("web_fetch", url="https://evil.org/.example.com/"), "ask"),
        (call("web_fetch", url="https://evil.org?.example.com/"), "ask"),
        (call("web_fetch", url="https://evil.org\\.example.com/"), "ask"),
        (call("web_fetch", url="https://me@a.example.com/"), "ask"),
        (call("web_fetch", url="HTTPS://A.EXAMPLE.COM"), "auto"),
        *((call("web_fetch", url=url), "deny") for url in (
            "https://bad.org/x", "https://BAD.org/x", "HTTPS://bad.org:443", "https://bad.org?q", "https://bad.org/./",
        )),
        (call("web_fetch", url="https://docs.org/public/x?a=../b"), "auto"),
        *((call("web_fetch", url=f"https://docs.org/public/{path}"), "ask") for path in (
            "../admin", "%2e%2e/admin", "..%2fadmin", ".%2E\\admin", "x/../../admin",
        )),
        (call("web_fetch", url="https://docs.org/%70rivate"), "deny"),
    ],
)  # fmt: skip
def test_rule_matches_the_path_and_the_host_that_a_call_means(
    requested: ToolCall, decision: Decision
) -> None:
    """P15."""
    rules = (
        ApprovalRule(tool="write_file", arguments={"path": "docs/secret"}, action="deny"),
        ApprovalRule(tool="write_file", arguments={"path": "docs/*"}, action="auto"),
        ApprovalRule(tool="web_fetch", arguments={"url": "https://Bad.org/*"}, action="deny"),
        ApprovalRule(tool="web_fetch", arguments={"url": "https://docs.org/private*"}, action="deny"),
        ApprovalRule(tool="web_fetch", arguments={"url": "https://docs.org/public/*"}, action="auto"),
        ApprovalRule(tool="web_fetch", arguments={"url": "https://*.example.com/*"}, action="auto"),
    )

    assert decision_on(requested, *rules) == decision


@pytest.mark.parametrize(
    ("glob", "text", "decision"),
    [
        ("*[ab]" * 100_000, "a", "ask"),
        ("*" + "a" * 1_000 + "b*", "a" * 1_000_000, "auto"),
        ("*" + "a" * 1_000 + "[b]*", "a" * 1_000_000, "ask"),
        ("a*b*a", "a" + "b" * 500_000 + "a", "deny"),
        ("a*[b]", "a and b", "deny"),
        ("a*a", "a", "auto"),
    ],
    ids=range(6),
)
def test_rules_take_bounded_time(glob: str, text: str, decision: Decision) -> None:
    """P15: a tenant chooses the globs, and its model the arguments; an agent serves other tenants too."""
    rules = [ApprovalRule(arguments={"text": glob}, action="deny")] * 99
    began = time.process_time()

    assert decision_on(call("mcp_x_y", text=text), *rules, ApprovalRule(action="auto")) == decision
    assert decision_on(call("bash", command="x " * 60_000), *BASH_RULES) == "ask"
    assert time.process_time() - began < 2


BASH_RULES = [ApprovalRule(tool="bash", arguments={"command": "make *"}, action="auto")] * 100


def test_approval_is_remembered_for_the_same_command_only() -> None:
    remembered = [approval(call("bash", command="make test"), "approve")]

    assert decision_on(call("bash", command="make test"), remembered=remembered) == "auto"
    assert decision_on(call("bash", command="make test; rm x"), remembered=remembered) == "ask"


@pytest.mark.parametrize(
    ("requested", "decision"),
    [
        (call("bash", command="cd src && make 2>&1 | tee 'a log'"), "auto"),
        (call("bash", command="cat $(cat name)"), "ask"),
        (call("bash", command='rm "$X"'), "ask"),
        (call("bash", command="rm *"), "ask"),
        (call("web_fetch", url="https://good.org\\@evil.org/"), "ask"),
    ],
)
def test_approval_is_remembered_only_if_the_text_says_what_runs(
    requested: ToolCall, decision: Decision
) -> None:
    """P15: a rejection is remembered for every text."""
    assert decision_on(requested, remembered=[approval(requested, "approve")]) == decision
    assert (coverage(requested.name, requested.arguments).by == "nothing") == (decision == "ask")
    assert decision_on(requested, remembered=[approval(requested, "reject")]) == "deny"


def test_approval_is_not_remembered_for_more_hosts() -> None:
    """P15: the approver saw the hosts that the call could reach."""
    seen = call("bash", command="make").model_copy(update={"network": NetworkPolicy(allow_hosts=("a.org",))})
    wider = seen.model_copy(update={"network": NetworkPolicy(allow_hosts=("*",), commands=True)})

    assert decision_on(seen, remembered=[approval(seen, "approve")]) == "auto"
    assert decision_on(wider, remembered=[approval(seen, "approve")]) == "ask"


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        (call("write_file", path="a\u202e", content="x"), "write_file with the path a\\u202e, any content"),
        (call("bash", command="ls"), "bash with exactly this command"),
        (call("bash", command="ls $X"), "no further call"),
        (call("web_fetch", url="https://A.org:8/x"), "any address of the host a.org"),
        (call("other", a=1), "other with exactly these arguments"),
    ],
)
def test_request_says_what_a_remembered_approval_covers(requested: ToolCall, words: str) -> None:
    covers = approval_item(requested).covers
    assert covers is not None
    assert words in covers.words


@pytest.mark.parametrize(
    ("value", "exact"),
    [(2**53, False), (2**53 + 1, True), ([{"n": -(10**20)}], True), (0.1, False), (True, False)],
)
def test_request_has_the_text_of_numbers_that_browsers_round(value: Any, exact: bool) -> None:
    text = approval_item(call("pay", amount=value)).exact
    assert (text is not None) == exact
    assert text is None or json.loads(text) == {"amount": value}


def test_rejection_is_remembered_and_the_last_decision_applies() -> None:
    requested = call("bash", command="make")

    assert decision_on(requested, remembered=[approval(requested, "reject")]) == "deny"
    assert (
        decision_on(requested, remembered=[approval(requested, "reject"), approval(requested, "approve")])
        == "auto"
    )


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git status", "auto"),
        ("git status --short docs", "auto"),
        ("git push", "ask"),
        ("git", "ask"),
        ("git status; rm x", "ask"),
        ("git status $(rm x)", "ask"),
        ("git status > x", "ask"),
        ("GIT_DIR=x git status", "ask"),
    ],
)
def test_approval_of_commands_that_begin_alike_covers_simple_ones(command: str, decision: Decision) -> None:
    remembered = [approval(call("bash", command="git status -s"), "approve", covers="begins")]

    assert decision_on(call("bash", command=command), remembered=remembered) == decision


@pytest.mark.parametrize("command", ["rm -rf build", "ls", "git status | cat", "python -c 'x'"])
def test_command_without_a_subcommand_offers_no_first_words(command: str) -> None:
    assert approval_item(call("bash", command=command)).begins is None


def test_decision_about_a_tool_covers_each_call_until_a_later_decision() -> None:
    first, other = call("bash", command="make"), call("bash", command="rm $X")
    refused = approval(first, "reject", covers="tool")
    allowed = approval(other, "approve", covers="tool")

    assert decision_on(other, remembered=[refused]) == "deny"
    assert decision_on(call("write_file", path="a", content=""), remembered=[refused]) == "ask"
    assert decision_on(first, remembered=[refused, allowed]) == "auto"
    assert decision_on(first, remembered=[allowed, refused]) == "deny"
    assert decision_on(first, remembered=[approval(first, "approve"), refused]) == "deny"


def test_edited_approval_is_remembered_for_the_edited_arguments() -> None:
    remembered = [approval(call("bash", command="rm -rf /"), "approve", {"command": "rm x"})]

    assert decision_on(call("bash", command="rm x"), remembered=remembered) == "auto"
    assert decision_on(call("bash", command="rm -rf /"), remembered=remembered) == "ask"


def test_decision_is_remembered_by_path_for_files_and_by_host_for_pages() -> None:
    assert pattern_of("write_file", {"path": "a", "content": "1"}) == pattern_of(
        "write_file", {"path": "a", "content": "2"}
    )
    assert pattern_of("web_fetch", {"url": "https://a.org/1"}) == pattern_of(
        "web_fetch", {"url": "http://A.org/2"}
    )
    assert pattern_of("other", {"a": 1, "b": 2}) == pattern_of("other", {"b": 2, "a": 1})
    assert pattern_of("other", {"a": 1}) != pattern_of("other", {"a": 2})


def test_deny_rule_overrides_a_remembered_approval() -> None:
    requested = call("bash", command="make")
    rule = ApprovalRule(tool="bash", action="deny")

    assert decision_on(requested, rule, remembered=[approval(requested, "approve")]) == "deny"


def fetching(url: str, result: ToolResult) -> tuple[Message, ...]:
    return (
        UserMessage(message_id="m1", content="hello"),
        AssistantMessage(message_id="m2", content=None, calls=(call("web_fetch", url=url),)),
        ToolMessage(name="web_fetch", result=result),
    )


def test_host_counts_as_fetched_only_if_the_page_came_from_it() -> None:
    fetched = ToolResult(tool_call_id="c1", content={"success": True, "url": "https://example.com/b"})

    assert hosts_fetched(fetching("https://example.com/a", fetched)) == {"example.com"}
    assert hosts_fetched(fetching("https://elsewhere.org/", fetched)) == frozenset()
    assert hosts_fetched(fetching("https://example.com/a", failed("c1", "rejected", "no"))) == frozenset()
