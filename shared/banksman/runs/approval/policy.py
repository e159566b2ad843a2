"""The approval policy: which calls run at once, need approval or are denied, and the previews to show. Pure.

The assistant's rules are evaluated in their order, and the first match decides. Without a match, the tool's
own `requires_approval` decides. `web_fetch` needs approval for each host that is new to the conversation and
that the user's message does not name: fetching is the only way in which a page could make the model leak
data. A remembered decision replaces an approval request, but never a rule's `deny`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.contracts.approvals import ApprovalItem, ApprovalRequested, Coverage, Covers, Preview
from banksman.contracts.assistants import ONE_APPROVER, ApprovalRule, ApprovalTerms, Decision, OnReject
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage, typed_text
from banksman.contracts.tools import NetworkPolicy, ToolCall, ToolDefinition
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.visible import one_line, visible
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.approval.rules import first_words, is_fixed, lasts, ruling
from banksman.runs.state import OpenApproval, Run

BASH = "bash"
WEB_FETCH = "web_fetch"
MAX_EXACT = 2**53
"""The largest of the integers that doubles, the numbers of browsers, represent one by one."""
MAX_PREVIEW_CHARS = 50_000
"""Maximum characters of each text of a preview; the arguments next to it are always complete."""

_FILE_TOOLS = frozenset({"read_file", "write_file", "edit_file"})


@dataclass(frozen=True, slots=True)
class Pattern:
    """The calls to which a remembered decision applies."""

    tool: str
    subject: str
    """The compared part of a call: the whole command (bash), the path (file tools), the host (web_fetch), or
    all arguments (other tools, and commands that last)."""
    network: str
    """The hosts that the call may reach, as JSON; empty without a policy."""
    covers: Covers | None = None
    """None for calls with this subject. For `begins`, the subject is the words; for `tool` it is empty."""


def decide(
    call: ToolCall,
    definition: ToolDefinition,
    rules: Sequence[ApprovalRule],
    *,
    remembered: Mapping[Pattern, Decision],
    message_text: str,
    fetched_hosts: frozenset[str],
) -> Decision:
    ruled: Decision | None = next(filter(None, (ruling(rule, call) for rule in rules)), None)
    decision = _default(call, definition, message_text, fetched_hosts) if ruled is None else ruled
    if decision != "ask":
        return decision
    fitting = _patterns_of(call)
    decided: list[Decision] = [one for pattern, one in remembered.items() if pattern in fitting]
    return decided[-1] if decided else "ask"


def _patterns_of(call: ToolCall) -> frozenset[Pattern]:
    """Return the patterns of the remembered decisions that apply to a call."""
    wider: tuple[Covers, ...] = ("begins", "tool")
    return frozenset(pattern_of(call.name, call.arguments, call.network, covers) for covers in (None, *wider))


def treated(call: ToolCall, tool: ToolDefinition) -> ToolCall:
    shared = ("requires_approval", "idempotent", "timeout_s", "server", "secrets")
    return call.model_copy(update={name: getattr(tool, name) for name in shared})


def pattern_of(
    tool: str, arguments: JsonObject, network: NetworkPolicy | None = None, covers: Covers | None = None
) -> Pattern:
    hosts = "" if network is None else network.model_dump_json()
    if covers == "tool":
        return Pattern(tool, "", hosts, covers)
    if covers == "begins" and (words := begins(tool, arguments)):
        return Pattern(tool, words, hosts, covers)
    subject = None
    if tool == BASH and not lasts(arguments):
        subject = arguments.get("command")
    elif tool in _FILE_TOOLS:
        subject = arguments.get("path")
    elif tool == WEB_FETCH:
        subject = host_of(arguments)
    if not isinstance(subject, str):
        subject = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    return Pattern(tool, subject, hosts)


def begins(tool: str, arguments: JsonObject) -> str | None:
    """Return the first words of a command, if a decision can cover every command that begins with them."""
    command = arguments.get("command")
    if tool != BASH or not isinstance(command, str) or lasts(arguments):
        return None
    return first_words(command)


def coverage(tool: str, arguments: JsonObject, covers: Covers | None = None) -> Coverage:
    """Return which further calls a remembered approval covers, in the words that every place shows."""
    if covers == "tool":
        return Coverage(by="tool", words=f"every call of {one_line(tool)}, whatever its arguments")
    if covers == "begins" and (first := begins(tool, arguments)):
        words = f"every simple command that begins with `{first}`, whatever follows"
        return Coverage(by="begins", words=words)
    subject = _shown(pattern_of(tool, arguments).subject)
    match tool:
        case "bash" if "session" in arguments:
            words = "no further call: what a command does in a session depends on the calls before it"
            return Coverage(by="nothing", words=words)
        case "bash" if is_fixed(arguments.get("command")) and lasts(arguments):
            words = "every call of bash with exactly this command in the background"
            return Coverage(by="arguments", words=words)
        case "bash" if is_fixed(arguments.get("command")):
            return Coverage(by="command", words="every call of bash with exactly this command")
        case "bash":
            return Coverage(by="nothing", words="no further call: this command runs more than its text shows")
        case "write_file" | "edit_file":
            return Coverage(by="path", words=f"every call of {tool} with the path {subject}, any content")
        case "read_file":
            return Coverage(by="path", words=f"every call of read_file with the path {subject}")
        case "web_fetch" if host_of(arguments):
            return Coverage(by="host", words=f"every call of web_fetch, any address of the host {subject}")
        case "web_fetch":
            return Coverage(by="nothing", words="no further call: the host of this address is unclear")
        case _:
            words = f"every call of {one_line(tool)} with exactly these arguments"
            return Coverage(by="arguments", words=words)


def remembered_decisions(approvals: Iterable[OpenApproval]) -> dict[Pattern, Decision]:
    """Return the latest decision by pattern, the newest last.

    An edited approval applies to the call as it was approved.

    An approval that covers nothing is omitted: a person decides again.
    """
    found: dict[Pattern, Decision] = {}
    for approval in approvals:
        items = {item.tool_call_id: item for item in approval.request.items}
        for decision in approval.resolved.decisions if approval.resolved else ():
            item = items.get(decision.tool_call_id)
            if item is not None:
                arguments = item.arguments if decision.arguments is None else decision.arguments
                pattern = pattern_of(item.name, arguments, item.network, decision.covers)
                if decision.decision == "reject":
                    found.pop(pattern, None)
                    found[pattern] = "deny"
                elif coverage(item.name, arguments, decision.covers).by != "nothing":
                    found.pop(pattern, None)
                    found[pattern] = "auto"
    return found


def hosts_fetched(history: Iterable[Message]) -> frozenset[str]:
    """Return the hosts that the model requested in a conversation and that `web_fetch` fetched from.

    Call and result must name the same host: an approver may have edited the address, and a page may have
    redirected to a host that was not approved.
    """
    requested: dict[str, str | None] = {}
    fetched: set[str] = set()
    for message in history:
        match message:
            case AssistantMessage(calls=calls):
                requested |= {call.id: host_of(call.arguments) for call in calls if call.name == WEB_FETCH}
            case ToolMessage(result=result) if result.tool_call_id in requested:
                host = host_of(result.content)
                if host is not None and host == requested[result.tool_call_id]:
                    fetched.add(host)
            case _:
                pass
    return frozenset(fetched)


def typed_in(run: Run, history: Sequence[Message]) -> str:
    """Return the text that a person typed in the message of a run, and in later messages to the open run."""
    users = [one for one in (*history, *run.steering) if isinstance(one, UserMessage)]
    ids = [one.message_id for one in users]
    own = run.message.message_id
    sent = users[ids.index(own) + 1 :] if own in ids else run.steering
    return "\n".join(typed_text(one.content, one.provenance) for one in (run.message, *sent))


def host_of(arguments: JsonObject) -> str | None:
    """Return the host that a call's URL leads to, as the runner reads it; None if the runner refuses it."""
    url = arguments.get("url")
    try:
        return parse_url(url).host if isinstance(url, str) else None
    except UrlRefused:
        return None


def _default(
    call: ToolCall, definition: ToolDefinition, message_text: str, fetched_hosts: frozenset[str]
) -> Decision:
    if call.name == WEB_FETCH and definition.server is None:
        host = host_of(call.arguments)
        known = host is not None and (host in fetched_hosts or _names(message_text, host))
        return "auto" if known else "ask"
    return "ask" if definition.requires_approval else "auto"


def _names(message_text: str, host: str) -> bool:
    """Return whether a text names exactly this host, and not one that only contains its name.

    Browsers read the full stops of East Asian texts and `%2e` as dots, and drop characters that do not show;
    a name before or after `@` is of a user, or of a mailbox.
    """
    named = rf"(?<![\w.\uff0e%@-]){re.escape(host)}(?![\w%@-]|[.\uff0e]\w|[\u3002\uff61][a-z0-9])"
    return any(
        all(char.isspace() or visible(char) == char for char in _beside(message_text, found))
        for found in re.finditer(named, message_text, re.IGNORECASE)
    )


def _beside(text: str, found: re.Match[str]) -> str:
    return text[max(found.start() - 1, 0) : found.start()] + text[found.end() : found.end() + 1]


def approval_item(call: ToolCall, *, old_content: str | None = None) -> ApprovalItem:
    return ApprovalItem(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        digest=call.digest,
        network=call.network,
        exact=json.dumps(call.arguments, indent=2) if _exceeds_doubles(call.arguments) else None,
        covers=coverage(call.name, call.arguments),
        begins=begins(call.name, call.arguments),
        preview=preview(call, old_content=old_content),
    )


def _exceeds_doubles(value: JsonValue) -> bool:
    match value:
        case int():
            return abs(value) > MAX_EXACT
        case list():
            return any(map(_exceeds_doubles, value))
        case dict():
            return any(map(_exceeds_doubles, value.values()))
        case _:
            return False


def approval_requested(
    approval_id: str,
    items: tuple[ApprovalItem, ...],
    terms: ApprovalTerms,
    on_reject: OnReject = "abort",
    *,
    now: datetime,
    expires_at: datetime,
) -> ApprovalRequested:
    after_s = None if terms.escalation is None else terms.escalation.after_s
    return ApprovalRequested(
        approval_id=approval_id,
        expires_at=expires_at,
        items=items,
        terms=None if terms == ONE_APPROVER else terms,
        escalates_at=None if after_s is None else now + timedelta(seconds=after_s),
        on_reject=on_reject,
    )


def preview(call: ToolCall, *, old_content: str | None = None) -> Preview:
    """Return the preview; `old_content` is the file that is replaced, None if it is new or unreadable."""
    arguments = call.arguments
    match call.name:
        case "bash" if isinstance(arguments.get("command"), str):
            return Preview(kind="command", command=f"{_mode(arguments)}{_shown(arguments['command'])}")
        case "web_fetch" if isinstance(arguments.get("url"), str):
            return Preview(kind="url", url=_shown(arguments["url"]))
        case "write_file" if isinstance(arguments.get("content"), str):
            return Preview(
                kind="diff",
                path=_shown(arguments.get("path")),
                old=None if old_content is None else _shown(old_content),
                new=_shown(arguments["content"]),
            )
        case "edit_file" if isinstance(edits := arguments.get("edits"), list):
            old, new = (_passages(edits, name) for name in ("old_text", "new_text"))
            return Preview(kind="diff", path=_shown(arguments.get("path")), old=old, new=new)
        case _:
            return Preview(kind="text", text=_shown(json.dumps(arguments, indent=2, ensure_ascii=False)))


def _mode(arguments: JsonObject) -> str:
    """Return a comment above a command that lasts longer than its call."""
    if (session := arguments.get("session")) is not None:
        return f"# In the session {_shown(session)} ({_shown(arguments.get('language', 'bash'))})\n"
    return "# In the background, until it ends or is stopped\n" if lasts(arguments) else ""


def _passages(edits: list[JsonValue], name: str) -> str:
    return _shown("\n[…]\n".join(str(edit.get(name)) for edit in edits if isinstance(edit, dict)))


def _shown(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = text[:MAX_PREVIEW_CHARS]
    left_out = len(text) - len(cut)
    return visible(cut) + (f"\n[{left_out:,} more characters]" if left_out else "")
