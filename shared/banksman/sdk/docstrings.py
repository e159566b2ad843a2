"""What a function's docstring says of it and of its parameters (Google style)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes):\s*")
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters"})
_PARAMETER = re.compile(r"(?P<name>\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, read."""

    description: str
    """All before its first section."""
    parameters: Mapping[str, str]
    """Description by name, each in one line."""

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read a docstring; None is an empty one."""
        sections: dict[str, list[str]] = {"": []}
        current = ""
        for line in inspect.cleandoc(text or "").splitlines():
            if header := _SECTION.fullmatch(line):
                current = header[1]
            sections.setdefault(current, []).append("" if header else line)
        described = (_parameters(lines) for name, lines in sections.items() if name in _ARGUMENTS)
        return cls(
            "\n".join(sections[""]).strip(), {name: text for one in described for name, text in one.items()}
        )


def _parameters(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    body = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    for line in body:
        start = None if line.startswith(" ") else _PARAMETER.fullmatch(line)
        if start is not None:
            name = start["name"]
            found[name] = start["text"].strip()
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
