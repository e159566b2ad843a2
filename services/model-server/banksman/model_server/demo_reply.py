"""The replies of the demo model, from a conversation with native calls or calls written as JSON text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from textwrap import shorten

from banksman.model_server import demo_texts as texts
from banksman.model_server.chat import (
    AssistantTurn,
    Call,
    ChatRequest,
    Item,
    Json,
    ToolOutput,
    UserText,
    as_object,
    dumps,
    loads_object,
)
from banksman.model_server.demo_rules import Step, ideas, read_request
from banksman.model_server.demo_texts import ExecutedStep, read_result
from banksman.model_server.replies import Reply, call_id, reply_of

_MAX_STREAM_S = 4.0
_DIAGRAM = re.compile(r"\b(?:diagram|flow\s?chart|mermaid)\b", re.IGNORECASE)


def demo_reply(chat: ChatRequest, *, chunk_delay_s: float) -> tuple[Reply, float]:
    """Return the demo model's reply, which depends on the request only, and the pause before its chunks."""
    history = read_history(chat)
    text = workflow_reply(chat, history.request) or workflow_text(chat, history.request)
    text, calls = _reply(history) if text is None else (text, [])
    made = tuple(Call(call_id(chat.dialect), step.tool, dumps(step.arguments)) for step in calls)
    chunk_delay_s = min(chunk_delay_s, _MAX_STREAM_S / max(1, len(text.split())))
    return reply_of(chat, text, made), chunk_delay_s


def _reply(history: DemoConversation) -> tuple[str, list[Step]]:
    """Return the text of a reply, and the steps that it calls."""
    batches, unknown = read_request(history.request, history.last_path)
    steps = list(chain.from_iterable(batches))
    if not history.parallel:
        batches = [[step] for step in steps]
    if not steps:
        return _without_calls(history.request), []
    if any(step.kind == "read" and not step.subject for step in steps):
        return texts.UNKNOWN_FILE, []
    pairs = zip(batches, history.rounds, strict=False)
    done = [read_result(step, output) for made in pairs for step, output in zip(*made, strict=False)]
    left = batches[len(history.rounds) :]
    if not left or any(each.failure is not None for each in done):
        skipped = list(chain.from_iterable(left))
        return texts.final_text(done, [*texts.notes(skipped, unknown)]), []
    calls = [_call(step, done) for step in left[0]]
    missing = next((call.tool for call in calls if call.tool not in history.tools), None)
    if missing is not None:
        return texts.final_text(done, [texts.NO_TOOL.format(missing)]), []
    if history.json_text:
        (call,) = calls
        return dumps({"tool": call.tool, "parameters": call.arguments, "terminate": False}), []
    return "" if history.rounds else texts.announcement(steps), calls


def _without_calls(request: str) -> str:
    if _DIAGRAM.search(request):
        return texts.DIAGRAM
    requested = ideas(request)
    return texts.HELP if requested is None else f"{requested}{texts.SIGNATURE}"


def _call(step: Step, done: Sequence[ExecutedStep]) -> Step:
    """Return a step with the content that earlier results provide."""
    if step.kind == "report":
        return replace(step, arguments={**step.arguments, "content": texts.report(done)})
    if step.kind == "save" and done:
        return replace(step, arguments={**step.arguments, "content": done[-1].text})
    return step


_CONTEXT = re.compile(r"<([a-z]+(?:[-_][a-z]+)+)>")
"""Begins a block that a coding agent adds to the user's message, such as `<system-reminder>`."""
_RESULT = re.compile(r"Tool result for [\w-]+:\s*(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DemoConversation:
    request: str
    rounds: tuple[tuple[ToolOutput, ...], ...]
    """Results of the calls for that message, one tuple for each reply."""
    last_path: str
    """The file that an earlier message wrote or read last; empty if there is none."""
    json_text: bool
    """Whether calls are written as JSON text (the protocol of the system prompt) instead of native calls."""
    tools: frozenset[str]
    """Names of the offered tools. With `json_text`, all words of the prompt that describes them."""
    parallel: bool


def read_history(chat: ChatRequest) -> DemoConversation:
    json_text = not chat.tools and '"tool"' in chat.system and '"terminate"' in chat.system
    items = _with_native_calls(chat.items) if json_text else chat.items
    begin, end = _last_request(items)
    request = "\n".join(one.text for one in items[begin:end] if isinstance(one, UserText))
    return DemoConversation(
        request=_without_context(request),
        rounds=_rounds(items[end:]),
        last_path=_last_path(items[:begin]),
        json_text=json_text,
        tools=frozenset(re.findall(r"[\w-]+", chat.system)) if json_text else frozenset(chat.tools),
        parallel=chat.parallel_calls and not json_text,
    )


def _without_context(text: str) -> str:
    """Return a text without the blocks that an agent added; the whole text if nothing else remains."""
    own: list[str] = []
    at = 0
    while (opening := _CONTEXT.search(text, at)) is not None:
        closing = f"</{opening[1]}>"
        end = text.find(closing, opening.end())
        if end < 0:
            break
        own.append(text[at : opening.start()])
        at = end + len(closing)
    return "".join((*own, text[at:])).strip() or text


def _with_native_calls(items: tuple[Item, ...]) -> tuple[Item, ...]:
    native: list[Item] = []
    call: Call | None = None
    for index, item in enumerate(items):
        match item:
            case AssistantTurn(text):
                call = _written_call(text, index)
                native.append(item if call is None else AssistantTurn("", (call,)))
            case UserText(text) if call is not None and (result := _RESULT.match(text)):
                native.append(ToolOutput(call.id, result["text"]))
                call = None
            case _:
                native.append(item)
    return tuple(native)


def _written_call(text: str, index: int) -> Call | None:
    written = loads_object(text[text.find("{") : text.rfind("}") + 1]) or {}
    tool, parameters = written.get("tool"), as_object(written.get("parameters"))
    if not isinstance(tool, str) or parameters is None:
        return None
    return Call(f"text_{index}", tool, dumps(parameters))


def _last_request(items: tuple[Item, ...]) -> tuple[int, int]:
    end = max((at + 1 for at, item in enumerate(items) if isinstance(item, UserText)), default=0)
    begin = end
    while begin > 0 and isinstance(items[begin - 1], UserText):
        begin -= 1
    return begin, end


def _rounds(items: tuple[Item, ...]) -> tuple[tuple[ToolOutput, ...], ...]:
    outputs = {item.call_id: item for item in items if isinstance(item, ToolOutput)}
    turns = [item.calls for item in items if isinstance(item, AssistantTurn) and item.calls]
    return tuple(tuple(outputs[call.id] for call in calls if call.id in outputs) for calls in turns)


def _last_path(items: tuple[Item, ...]) -> str:
    calls = [call for item in items if isinstance(item, AssistantTurn) for call in item.calls]
    paths = [(loads_object(call.arguments) or {}).get("path") for call in calls]
    return next((path for path in reversed(paths) if isinstance(path, str)), "")


_TASK = "Choose the workflow that the user wants to start"
_WORD = re.compile(r"[a-z0-9]+")
_VALUE = r"[`\"']?([\w./-]*\w)"
_NAMED = re.compile(rf"\b(?:named|called|for|in)\s+{_VALUE}", re.IGNORECASE)


def workflow_reply(chat: ChatRequest, request: str) -> str | None:
    """Return the JSON object of a filled form; None if the system prompt requests no workflow."""
    if _TASK not in chat.system:
        return None
    words = set(_WORD.findall(request.lower()))
    described = [line for line in chat.system.splitlines() if line.startswith('{"name"')]
    workflows = [loads_object(line) or {} for line in described]
    best = max(workflows, key=lambda one: _score(one, words), default=Json())
    if not _score(best, words):
        return dumps({"workflow": None})
    return dumps({"workflow": best["name"], "parameters": _parameters(best, words, request)})


def _score(workflow: Json, words: set[str]) -> int:
    return len(words & set(_WORD.findall(str(workflow.get("name", "")).lower())))


def _parameters(workflow: Json, words: set[str], request: str) -> Json:
    form: Json = workflow.get("parameters", {})
    properties: dict[str, Json] = form.get("properties", {})
    found: Json = {
        name: choice
        for name, field in properties.items()
        for choice in field.get("enum", ())
        if str(choice).lower() in words
    }
    texts = [name for name in form.get("required", ()) if properties.get(name, {}).get("type") == "string"]
    for name in texts:
        if stated := re.search(rf"\b{re.escape(name)}\s+{_VALUE}", request, re.IGNORECASE):
            found.setdefault(name, stated[1])
    named = _NAMED.search(request)
    if named and texts:
        found.setdefault(texts[0], named[1])
    return found


_SUMMARY = "You summarise conversations"
_REPORT = "You write cited reports"
_TITLE = "Write a title for the conversation"
_FIRST_MESSAGE = re.compile(r"^User:\s*(.+)$", re.MULTILINE)
_SAID = re.compile(r"^(User|Assistant): (.+)$", re.MULTILINE)
_SOURCE = re.compile(r"^\[(\d+)\] \S+\n(.*?)(?=^\[\d+\] |\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"[^\s#>|*`-][^\n]{20,}?(?:[.!?](?=\s|$)|$)", re.MULTILINE)
MAX_LINES = 12
MAX_CHARS = 300
MAX_TITLE_CHARS = 60


def workflow_text(chat: ChatRequest, request: str) -> str | None:
    """Return a summary, a report or a title made of quotes; None if the system prompt requests none."""
    if _SUMMARY in chat.system:
        said = _SAID.findall(request)
        if not said:
            return "The conversation has no messages."
        lines = [f"- {who}: {text[:MAX_CHARS]}" for who, text in said[-MAX_LINES:]]
        title = f"The last {len(lines)} of {len(said)} messages (the demo model only quotes):"
        return "\n".join([title, "", *lines])
    if _REPORT in chat.system:
        sources = [(number, _SENTENCE.search(body)) for number, body in _SOURCE.findall(request)]
        lines = [f"- {found[0][:MAX_CHARS]} [{number}]" for number, found in sources if found]
        return "What the sources begin with (the demo model only quotes):\n\n" + "\n".join(lines)
    if _TITLE in chat.system and (first := _FIRST_MESSAGE.search(request)):
        return shorten(first[1].replace("`", ""), MAX_TITLE_CHARS, placeholder="…")
    return None
