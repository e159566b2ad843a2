"""The relevance of tools to a conversation, which selects the tools to offer. Does no I/O.

If all tools fit, all are offered. If there are more than a request may contain, or their descriptions exceed
the budget of the prompt, the least relevant tools are dropped. The first criterion that differs decides:

1. the conversation has called the tool; such a tool is never dropped
2. the assistant always offers it
3. the user names it
4. the user names its category, or an earlier run of the conversation called a tool of its category
5. it works on files, and the conversation has files
6. the number of the user's words in its name and description
7. its priority
8. its position in the list

The user's words are those of this run and of earlier runs. The calls of the current run raise only the called
tools, so that the offer does not change during a run and vendors can serve it from their caches.
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
"""Number of the user's newest messages whose words count."""
MAX_TEXT_CHARS = 20_000
"""Maximum characters of each message, from its start."""
MIN_WORD_CHARS = 3
"""Shorter words do not describe the purpose of a tool."""

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
    has_files: bool = False


Rank = tuple[bool, bool, bool, bool, bool, int, int, int]
"""The criteria above in their order; a higher rank is dropped later."""


def needs_of(history: Iterable[Message], message_id: str, always: Iterable[str] = ()) -> Needs:
    """Return the needs of a conversation.

    Args:
        history: The history that the model request contains.
        message_id: Id of the message that started the run. Later messages belong to this run.
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
            # The correction of a malformed reply has the id of the reply.
            case UserMessage(content=content) if message.message_id not in replies:
                texts.append(text_of(content)[:MAX_TEXT_CHARS])
                has_files |= not isinstance(content, str) and any(isinstance(p, FilePart) for p in content)
                if message.message_id == message_id and before is None:
                    before = set(used)
            case _:
                pass
    words = frozenset(word for text in texts[-USER_MESSAGES:] for word in words_of(text))
    earlier = frozenset(used if before is None else before)
    return Needs(frozenset(used), earlier, frozenset(always), words, has_files)


def ranks(tools: Sequence[ToolDefinition], needs: Needs) -> dict[str, Rank]:
    """Return the rank of each tool by its name."""
    categories = {tool.category for tool in tools if tool.name in needs.used_before}
    return {
        tool.name: _rank(tool, place, needs, tool.category in categories) for place, tool in enumerate(tools)
    }


def words_of(text: str) -> frozenset[str]:
    """Return the significant words of a text in lower case and in the singular."""
    found = (_singular(word) for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS)
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
