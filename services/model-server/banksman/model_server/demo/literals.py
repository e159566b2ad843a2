from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LiteralKind = Literal["code", "quote", "json", "url"]

TOKEN = r"\x00\d+\x00"

_LITERAL = re.compile(
    r"```(?:\w*\n)?(?P<fence>.+?)```"
    r"|`(?P<code>[^`\n]+)`"
    r"|(?P<json>\{(?:[^{}]|\{[^{}]*\})*\})"
    r"|(?P<url>https?://[^\s`\"'<>]*[^\s`\"'<>.,;:!?)])"
    r"|\"(?P<double>[^\"\n]*)\""
    r"|(?<!\w)'(?P<single>[^'\n]*)'(?!\w)"
    r"|\u201c(?P<curly>[^\u201c\u201d\n]*)\u201d",
    re.DOTALL,
)
_TOKEN = re.compile(TOKEN)
_KINDS: dict[str, LiteralKind] = {"fence": "code", "code": "code", "json": "json", "url": "url"}


@dataclass(frozen=True, slots=True)
class Quotation:
    """A part of a sentence that is taken by the letter."""

    kind: LiteralKind
    text: str
    source: str
    """As it stands in the sentence, its quotes included."""


class Literals:
    """A text whose quotations, code, JSON and addresses are tokens, so that rules see only its words."""

    def __init__(self, text: str) -> None:
        self._quotations: list[Quotation] = []
        self.masked = _LITERAL.sub(self._keep, text)

    def within(self, masked: str) -> list[Quotation]:
        """The quotations in a part of the masked text, in order."""
        return [self._quotation(token) for token in _TOKEN.findall(masked)]

    def value(self, masked: str) -> str:
        """What a part means: the quoted text when it is one quotation, else the text as written."""
        masked = masked.strip()
        if _TOKEN.fullmatch(masked):
            return self._quotation(masked).text
        return self.source(masked)

    def source(self, masked: str) -> str:
        """A part of the masked text as it was written."""
        return _TOKEN.sub(lambda token: self._quotation(token.group()).source, masked)

    def _keep(self, match: re.Match[str]) -> str:
        group = match.lastgroup or "double"
        self._quotations.append(
            Quotation(_KINDS.get(group, "quote"), match.group(group).strip("\n"), match.group())
        )
        return f"\x00{len(self._quotations) - 1}\x00"

    def _quotation(self, token: str) -> Quotation:
        return self._quotations[int(token.strip("\x00"))]
