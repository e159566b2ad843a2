from __future__ import annotations

import re

TOKEN = r"\x00\d+\x00"
"""Pattern of a masked literal."""
_TOKEN = re.compile(TOKEN)
_LITERAL = re.compile(
    r"```(?:\w*\n)?(?P<fence>.+?)```"
    r"|`(?P<code>[^`\n]+)`"
    r"|(?P<json>\{(?:[^{}]|\{[^{}]*\})*\})"
    r"|(?P<url>https?://[^\s`\"'<>]*[^\s`\"'<>.,;:!?)])"
    r"|\"(?P<quote>[^\"\n]*)\"",
    re.DOTALL,
)


class Literals:
    """A request whose code, JSON, URLs and quotations are masked, so that rules match only its words."""

    def __init__(self, text: str) -> None:
        self.tokens: dict[str, re.Match[str]] = {}
        self.masked = _LITERAL.sub(self._mask, text)

    def find(self, masked: str, *kinds: str) -> list[str]:
        """Return the texts of the literals of these kinds in a part of the masked text."""
        found = [self.tokens[token] for token in _TOKEN.findall(masked)]
        return [_text(literal) for literal in found if literal.lastgroup in kinds]

    def value(self, masked: str) -> str:
        """Return the literal's text if the part is exactly one literal, otherwise the part as written."""
        literal = self.tokens.get(masked.strip())
        return self.source(masked.strip()) if literal is None else _text(literal)

    def source(self, masked: str) -> str:
        """Return the original text of a part of the masked text."""
        return _TOKEN.sub(lambda token: self.tokens[token.group()].group(), masked)

    def _mask(self, literal: re.Match[str]) -> str:
        token = f"\x00{len(self.tokens)}\x00"
        self.tokens[token] = literal
        return token


def _text(literal: re.Match[str]) -> str:
    return literal[literal.lastgroup or 0].strip("\n")
