"""Which tools matter to a conversation as it stands, for when not all of them can be offered. Pure.

While all tools fit, all are offered. When there are more than a request may hold, or their descriptions do
not fit the prompt, tools are left out from the end of this order; the first reason that differs decides:

1. the conversation has called it: its history tells of the calls, so it is never left out
2. its assistant always offers it
3. the user names it
4. its category is one that the user names, or that an earlier run of the conversation called tools of
5. it works on files, and the conversation has some
6. how many of the user's words its name and description share
7. its priority
8. its place in the list

The user's words are those of this run and of the ones before it; what the run itself has called so far
moves only the called tools, so that the offer, and with it what a vendor caches, stays the same while a run
goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from banksman.contracts.messages import AssistantMessage, FilePart, Message, UserMessage, text_of
from banksman.contracts.tools import ToolDefinition

WORKSPACE = "workspace"
"""The category of the tools that work on a conversation's files."""
USER_MESSAGES = 4
"""Messages of the user whose words count, the newest."""
MAX_TEXT_CHARS = 20_000
"""Of each of them, from its beginning."""
LEAST_WORD_CHARS = 3
"""Shorter words say nothing about what a tool is for."""

_WORD = re.compile(r"[^\W_]+")
# Only what many descriptions and requests hold alike.
_COMMON = frozenset(
    "and any are but can could did does for from has have how into its let may more most not now one only "
    "other our out over please run same should some such than that the their them then there these they this "
    "tool tools use used user uses using was what when where which who will with would you your".split()
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a conversation says about the tools it needs."""

    used: frozenset[str] = frozenset()
    """Names of the tools that its history tells of."""
    used_before: frozenset[str] = frozenset()
    """Those of them that were called before this run."""
    always: frozenset[str] = frozenset()
    """Names of the tools that its assistant always offers."""
    words: frozenset[str] = frozenset()
    """What the user wrote, in lower case."""
    has_files: bool = False


Rank = tuple[bool, bool, bool, bool, bool, int, int, int]
"""The reasons above in their order; higher stays longer."""


def needs_of(history: Iterable[Message], asked: str, always: Iterable[str] = ()) -> Needs:
    """Read a history.

    Args:
        history: As the model is shown it.
        asked: Id of the message that the run is about; what comes after it is of this run.
        always: Names of the tools that the assistant always offers.
    """
    used: set[str] = set()
    before: set[str] | None = None
    texts: list[str] = []
    has_files = False
    replies: set[str] = set()
    for message in history:
        match message:
            case AssistantMessage(calls=calls):
                used.update(call.name for call in calls)
                replies.add(message.message_id)
            # Our correction of an unreadable reply has the reply's id.
            case UserMessage(content=content) if message.message_id not in replies:
                texts.append(text_of(content)[:MAX_TEXT_CHARS])
                has_files |= not isinstance(content, str) and any(isinstance(p, FilePart) for p in content)
                if message.message_id == asked and before is None:
                    before = set(used)
            case _:
                pass
    words = frozenset(word for text in texts[-USER_MESSAGES:] for word in words_of(text))
    earlier = frozenset(used if before is None else before)
    return Needs(frozenset(used), earlier, frozenset(always), words, has_files)


def ranks(tools: Sequence[ToolDefinition], needs: Needs) -> dict[str, Rank]:
    """How much each tool matters, by its name."""
    categories = {tool.category for tool in tools if tool.name in needs.used_before}
    return {
        tool.name: _rank(tool, place, needs, tool.category in categories) for place, tool in enumerate(tools)
    }


def words_of(text: str) -> frozenset[str]:
    """The words of a text that may tell what it is about: lower case, without endings of the plural."""
    found = (_singular(word) for word in _WORD.findall(text.lower()) if len(word) >= LEAST_WORD_CHARS)
    return frozenset(word for word in found if word not in _COMMON)


def _rank(tool: ToolDefinition, place: int, needs: Needs, category_used: bool) -> Rank:
    name, category, about = _words_about(tool.name, tool.category, tool.description)
    return (
        tool.name in needs.used,
        tool.name in needs.always,
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
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    named = words_of(name.replace("_", " "))
    return named, words_of(category.replace("_", " ")), named | words_of(description)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
