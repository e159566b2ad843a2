"""The enhanced system prompt: base, tools by category, calling instructions, diagrams (R4, R24-R26, R33)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import assert_never, cast

from banksman.contracts.messages import ToolProtocol
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.prompting.instructions import HOW_TO_CALL_AS_TEXT, HOW_TO_CALL_NATIVELY, MERMAID_INSTRUCTIONS
from banksman.prompting.relevance import Needs, ranks

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
    protocol: ToolProtocol,
    *,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
    max_tools: int = DEFAULT_MAX_TOOLS,
    needs: Needs = NO_NEEDS,
    mermaid: bool = True,
) -> EnhancedPrompt:
    """Add tool descriptions, calling instructions and diagram instructions to a rendered prompt.

    If there are more than `max_tools` tools, the most relevant ones stay (see `relevance`). If the additions
    exceed `budget_tokens`, descriptions are shortened first, and then tools are dropped, the least relevant
    first. Tools that occur in the history are never dropped, and the base is never cut.

    Args:
        base: The prompt, with its variables already replaced.
        tools: The tools that the run may offer. Without tools, the prompt has no tool section (R57).
        protocol: The format in which the model writes calls.
        budget_tokens: Maximum size of the additions in estimated tokens.
        max_tools: Maximum number of tools to offer.
        needs: The conversation's need for tools.
        mermaid: Whether to add the diagram instructions.
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
    """Return the tools that may be dropped, the least relevant first."""
    rank = ranks(tools, needs)
    return sorted((tool for tool in tools if tool.name not in needs.used), key=lambda tool: rank[tool.name])


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
    tools: Sequence[ToolDefinition], protocol: ToolProtocol, *, shortened: bool, mermaid: bool
) -> str:
    sections: list[str] = []
    if tools:
        sections += [
            "## Tools",
            *_categories(tools, shortened),
            "## How to call a tool",
            _how_to_call(protocol),
        ]
    if mermaid:
        sections.append(MERMAID_INSTRUCTIONS)
    return _GAP.join(sections)


def _how_to_call(protocol: ToolProtocol) -> str:
    match protocol:
        case "native":
            return HOW_TO_CALL_NATIVELY
        case "json_text":
            return HOW_TO_CALL_AS_TEXT
        case _:
            assert_never(protocol)


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
