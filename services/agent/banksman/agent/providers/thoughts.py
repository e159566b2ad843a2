"""Reasoning that a model writes into its text, between tags, because its server does not separate it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from banksman.agent.providers.base import DeltaKind

_TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
}
"""The tags that begin reasoning, and those that end it."""
_MAX_UNDECIDED = 64
_UNOPENED = ("\n</think>\n", "\n[/THINK]\n")


class Thoughts:
    """Separates the reasoning at the beginning of a reply, which arrives in pieces.

    Tags after the first word of the answer are text: a user may have asked for them, and arguments of calls
    contain them.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._thought = False
        """True after a tag."""
        self._closing: str = ""
        """The tag that ends the reasoning; empty outside."""
        self._answers = False
        """True after the beginning of the answer."""

    def feed(self, piece: str) -> Iterator[tuple[DeltaKind, str]]:
        """Yield the parts of the text that are known to be text or reasoning; a part may be empty."""
        if self._answers:
            yield "message", piece
            return
        self._pending += piece
        while self._pending and not self._answers:
            if self._closing:
                before, closing, after = self._pending.partition(self._closing)
                keep = 0 if closing else _common_end(before, self._closing)
                yield "reasoning", before[: len(before) - keep]
                self._pending = after if closing else before[len(before) - keep :]
                self._closing = "" if closing else self._closing
                if not closing:
                    return
            else:
                bare = self._pending.lstrip()
                tag = next((tag for tag in _TAGS if bare.startswith(tag)), "")
                undecided = len(self._pending) < _MAX_UNDECIDED and any(one.startswith(bare) for one in _TAGS)
                if undecided and not tag:
                    return
                self._closing, self._answers = _TAGS.get(tag, ""), not tag
                self._thought = self._thought or not self._answers
                # The first line of an answer may be indented; what follows reasoning is only a separator.
                self._pending = bare[len(tag) :] if self._thought else self._pending
        yield "message", self.flush()

    def flush(self) -> str:
        """Return the text that could have become a tag."""
        rest, self._pending = self._pending, ""
        return "" if self._closing else rest


def without_unopened(text: str) -> str:
    """Return the text after reasoning without a first tag, which the prompt of some models contains."""
    if text.lstrip().startswith(("{", "`")):
        return text
    for closing in _UNOPENED:
        before, found, after = text.partition(closing)
        if found and "```" not in before:
            return after.lstrip()
    return text


def _common_end(text: str, tag: str) -> int:
    """Return the length of the longest end of a text that begins a tag."""
    longest = min(len(text), len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(tag[:length])), 0)
