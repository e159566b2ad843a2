"""The enhanced system prompt: base, tools by category, calling instructions, diagrams (R4, R24-R26, R33).

If there are more tools than a request may contain, or their descriptions exceed the budget of the prompt, the
least relevant tools are dropped, but never the four of R63 and those that the conversation has called. Of the
others, the first criterion that differs decides:

1. the assistant always offers it
2. the user names it, with every part of its name: `gizmo_05`, `gizmo 05`; the id of an MCP server in front
   may be missing
3. the user writes the words of its name, without numbers and short words
4. the user names its category, or an earlier run of the conversation called a tool of its category
5. it works on files, and the conversation has files
6. the number of the user's words in its name and description
7. its priority
8. its position in the list

The user's words are those of this run and of earlier runs. The calls of the current run raise only the called
tools, so that the offer does not change during a run and vendors can serve it from their caches.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import cast

from banksman.contracts import messages
from banksman.contracts.mcp import SEPARATOR
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.prompting.templates import HOW_TO_CALL, MERMAID_INSTRUCTIONS

WORKSPACE = "workspace"
"""The category of the tools that work on a conversation's files."""
USER_MESSAGES = 4
"""Number of the user's newest messages whose words count."""
MAX_TEXT_CHARS = 20_000
"""Maximum characters of each message from its start, and from its end."""
MIN_WORD_CHARS = 3
"""Shorter words do not describe the purpose of a tool."""

NEVER_DROPPED = frozenset({"bash", "read_file", "write_file", "web_fetch", "web_search"})
"""Names of the workspace tools that every run has (R63)."""

_WORD = re.compile(r"[^\W_]+")
# Words that most descriptions and messages contain.
_COMMON = frozenset(
    "and any are but can could did does for from has have how into its let may more most not now one only "
    "other our out over please run same should some such than that the their them then there these they this "
    "tool tools use used user uses using was what when where which who will with would you your".split()
)


@dataclass(frozen=True, slots=True)
class Needs:
    """Facts about a conversation from which the relevance of tools follows."""

    used: frozenset[str] = frozenset()
    """Names of the tools that the history contains calls of."""
    used_before: frozenset[str] = frozenset()
    """The part of `used` that earlier runs called."""
    always: frozenset[str] = frozenset()
    """Names of the tools that the assistant always offers."""
    words: frozenset[str] = frozenset()
    """The user's words, in lower case and in the singular."""
    spoken: frozenset[str] = frozenset()
    """All words and numbers of the user, as written but in lower case."""
    has_files: bool = False


Rank = tuple[bool, bool, bool, bool, bool, int, int, int]
"""The criteria of the module's docstring in their order; a higher rank is dropped later."""


def needs_of(history: Iterable[messages.Message], message_id: str, always: Iterable[str] = ()) -> Needs:
    """Return the needs of a conversation; `message_id` is the id of the message that started the run."""
    used: set[str] = set()
    before: set[str] | None = None
    texts: list[str] = []
    has_files = False
    replies: set[str] = set()
    for message in history:
        match message:
            case messages.AssistantMessage(calls=calls):
                used.update(call.name for call in calls)
                replies.add(message.message_id)
            # The correction of a malformed reply has the id of the reply.
            case messages.UserMessage(content=content) if message.message_id not in replies:
                texts.append(_ends(messages.text_of(content)))
                has_files |= not isinstance(content, str) and any(
                    isinstance(p, messages.FilePart) for p in content
                )
                if message.message_id == message_id and before is None:
                    before = set(used)
            case _:
                pass
    latest = texts[-USER_MESSAGES:]
    words = frozenset(word for text in latest for word in words_of(text))
    spoken = frozenset(word for text in latest for word in _WORD.findall(text.lower()))
    earlier = frozenset(used if before is None else before)
    return Needs(frozenset(used), earlier, frozenset(always), words, spoken, has_files)


def _ends(text: str) -> str:
    # An instruction often follows a long text that the user pasted.
    cut = f"{text[:MAX_TEXT_CHARS]} {text[-MAX_TEXT_CHARS:]}"
    return text if len(text) <= len(cut) else cut


def ranks(tools: Sequence[ToolDefinition], needs: Needs) -> dict[str, Rank]:
    categories = {tool.category for tool in tools if tool.name in needs.used_before}
    return {
        tool.name: _rank(tool, place, needs, tool.category in categories) for place, tool in enumerate(tools)
    }


def words_of(text: str) -> frozenset[str]:
    """Return the significant words of a text in lower case and in the singular."""
    found = (_singular(word) for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS)
    return frozenset(word for word in found if word not in _COMMON)


def _rank(tool: ToolDefinition, place: int, needs: Needs, category_used: bool) -> Rank:
    parts, name, category, about = _words_about(tool.name, tool.category, tool.description)
    return (
        tool.name in needs.always,
        bool(parts) and parts <= needs.spoken,
        bool(name) and name <= needs.words,
        category_used or (bool(category) and category <= needs.words),
        needs.has_files and tool.category == WORKSPACE and tool.server is None,
        len(about & needs.words),
        tool.priority,
        -place,
    )


@lru_cache(maxsize=4_096)
def _words_about(
    name: str, category: str, description: str
) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]:
    """Return the parts of a name, its words, those of the category, and those of name and description."""
    own_name = name.partition(SEPARATOR)[2] or name
    parts = frozenset(_WORD.findall(own_name.lower()))
    named = words_of(name.replace("_", " "))
    return parts, named, words_of(category.replace("_", " ")), named | words_of(description)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


DEFAULT_BUDGET_TOKENS = 8_000
"""Default budget of an enhanced prompt in estimated tokens, in addition to its base."""

CHARS_PER_TOKEN = 4
"""The estimate for budgets. Vendors count 3 to 5 characters per token."""

DEFAULT_MAX_TOOLS = 64
"""Default maximum of tools in one request. Vendors refuse more than 128."""

SHORT_DESCRIPTION_CHARS = 160
"""Characters of a shortened tool description."""

NO_NEEDS = Needs()

_GAP = "\n\n"


@dataclass(frozen=True, slots=True)
class EnhancedPrompt:
    """An enhanced system prompt, and the tools that did not fit into it."""

    text: str
    tools: tuple[ToolDefinition, ...]
    """The tools that the prompt describes, in their order. Only these may be offered."""
    dropped: tuple[str, ...] = ()
    """Names of the omitted tools, in the order in which they were dropped."""
    shortened: bool = False
    """True if descriptions were shortened to fit the budget."""

    @property
    def estimated_tokens(self) -> int:
        return estimated_tokens(self.text)


def enhance(
    base: str,
    tools: Sequence[ToolDefinition],
    protocol: messages.ToolProtocol,
    *,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
    max_tools: int = DEFAULT_MAX_TOOLS,
    needs: Needs = NO_NEEDS,
    mermaid: bool = True,
) -> EnhancedPrompt:
    """Add descriptions of tools, calling instructions and diagram instructions to a rendered prompt.

    If the additions exceed `budget_tokens`, descriptions are shortened first, and then tools are dropped. The
    base is never cut. Without tools, the prompt has no tool section (R57).
    """
    budget_chars = budget_tokens * CHARS_PER_TOKEN
    surplus = max(0, len(tools) - max_tools)
    kept, dropped = _without(tools, _least_first(tools, needs)[:surplus] if surplus else ())
    additions = _additions(kept, protocol, shortened=False, mermaid=mermaid)
    shortened = bool(kept) and len(additions) > budget_chars
    if shortened:
        additions = _additions(kept, protocol, shortened=True, mermaid=mermaid)
        left = [tool for tool in _least_first(tools, needs) if tool.name not in dropped]
        kept, too_long = _without(kept, _excess(kept, left, len(additions) - budget_chars))
        dropped += too_long
        additions = _additions(kept, protocol, shortened=True, mermaid=mermaid)
    text = _GAP.join(part for part in (base.strip(), additions) if part)
    return EnhancedPrompt(text, kept, dropped, shortened and bool(kept))


def estimated_tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def _least_first(tools: Sequence[ToolDefinition], needs: Needs) -> list[ToolDefinition]:
    rank, kept = ranks(tools, needs), needs.used | NEVER_DROPPED
    return sorted((tool for tool in tools if tool.name not in kept), key=lambda tool: rank[tool.name])


def _excess(
    tools: Sequence[ToolDefinition], leaving: Sequence[ToolDefinition], excess_chars: int
) -> list[ToolDefinition]:
    """Return the first tools of `leaving` whose removal shrinks the text by `excess_chars`, or all."""
    left_in = Counter(tool.category for tool in tools)
    dropped: list[ToolDefinition] = []
    for tool in leaving:
        if excess_chars <= 0:
            break
        dropped.append(tool)
        left_in[tool.category] -= 1
        excess_chars -= len(_tool(tool, shortened=True)) + len(_GAP)
        if not left_in[tool.category]:
            excess_chars -= len(_heading(tool.category)) + len(_GAP)
    return dropped


def _without(
    tools: Sequence[ToolDefinition], dropped: Sequence[ToolDefinition]
) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
    names = {tool.name: None for tool in dropped}
    return tuple(tool for tool in tools if tool.name not in names), tuple(names)


def _additions(
    tools: Sequence[ToolDefinition], protocol: messages.ToolProtocol, *, shortened: bool, mermaid: bool
) -> str:
    sections: list[str] = []
    if tools:
        sections += [
            "## Tools",
            *_categories(tools, shortened),
            "## How to call a tool",
            HOW_TO_CALL[protocol],
        ]
    if mermaid:
        sections.append(MERMAID_INSTRUCTIONS)
    return _GAP.join(sections)


def _categories(tools: Iterable[ToolDefinition], shortened: bool) -> Iterable[str]:
    ordered = sorted(tools, key=lambda tool: tool.category)
    for category, members in groupby(ordered, key=lambda tool: tool.category):
        yield _heading(category)
        yield from (_tool(tool, shortened) for tool in members)


def _heading(category: str) -> str:
    return f"### {category}"


def _tool(tool: ToolDefinition, shortened: bool) -> str:
    lines = [f"**{tool.name}**: {_description(tool.description, shortened)}"]
    properties = _object(tool.input_schema.get("properties"))
    required = tool.input_schema.get("required")
    names = required if isinstance(required, list) else []
    for name, schema in properties.items():
        lines.append(_parameter(name, _object(schema), name in names, shortened))
    if not properties:
        lines.append("- no parameters")
    if tool.terminate:
        lines.append("- every call is your last action: its result goes to the user as the answer")
    return "\n".join(lines)


def _parameter(name: str, schema: JsonObject, required: bool, shortened: bool) -> str:
    needed = "required" if required else "optional"
    text = schema.get("description")
    description = f": {_description(text, shortened)}" if isinstance(text, str) and text else ""
    return f"- `{name}` ({_type(schema)}, {needed}){description}{_limits(schema)}"


def _limits(schema: JsonObject) -> str:
    limits = [
        f"{word} {json.dumps(schema[key], ensure_ascii=False)}"
        for key, word in (("default", "default"), ("minimum", "at least"), ("maximum", "at most"))
        if schema.get(key) is not None
    ]
    return f" [{', '.join(limits)}]" if limits else ""


def _type(schema: JsonObject) -> str:
    choices = schema.get("enum")
    if isinstance(choices, list):
        return "one of " + ", ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return " or ".join(_type(_object(alternative)) for alternative in alternatives)
    kind = schema.get("type")
    if kind == "array":
        return f"array of {_type(_object(schema.get('items')))}"
    if isinstance(kind, list):
        return " or ".join(str(name) for name in kind)
    return kind if isinstance(kind, str) else "any"


def _description(text: str, shortened: bool) -> str:
    line = " ".join(text.split())
    if not shortened or len(line) <= SHORT_DESCRIPTION_CHARS:
        return line
    return line[: SHORT_DESCRIPTION_CHARS - 1].rstrip() + "…"


def _object(value: JsonValue) -> JsonObject:
    return cast(JsonObject, value) if isinstance(value, dict) else {}
