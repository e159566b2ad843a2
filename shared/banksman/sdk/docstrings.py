"""Descriptions of a function and its parameters from its docstring (Google, NumPy or Sphinx style)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from griffe import DocstringSection, PerStyleOptions

_HEADER = re.compile(
    r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes):[ \t]*\n+",
    re.MULTILINE,
)
_SECTION = re.compile(r":[ \t]*$|^[ \t]*:|^[ \t]*-{3,}", re.MULTILINE)
"""Matches the header of a section in any of the three styles; a text without one is only a description."""
_OPTIONS: PerStyleOptions = {
    "google": {"warnings": False},
    "numpy": {"warnings": False},
    "sphinx": {"warnings": False},
}
# griffe parses these as admonitions. They are omitted, because each word of a description costs tokens.
_OMITTED = frozenset({"Example", "Note", "Notes"})


@dataclass(frozen=True, slots=True)
class Docstring:
    """The parts of a docstring that describe a tool to a model."""

    description: str
    """Everything before the first section."""
    parameters: Mapping[str, str]
    """Descriptions by parameter name, each in one line."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse a docstring; None means an empty one."""
        plain = inspect.cleandoc(text or "")
        if not _SECTION.search(plain):
            return cls(plain, {})
        # Imported on first use: the import takes 0.1 s, and clients that serve no tools do not need it.
        from griffe import Docstring as Source
        from griffe import DocstringSectionParameters, parse_auto

        # griffe reads a header as text unless an empty line precedes it and none follows.
        spaced = _HEADER.sub(r"\n\1:\n", plain)
        sections = parse_auto(
            Source(spaced, lineno=1),
            style_order=["google", "numpy", "sphinx"],
            default="google",
            per_style_options=_OPTIONS,
        )
        listed = [section for section in sections if isinstance(section, DocstringSectionParameters)]
        return cls(
            _description(sections),
            {one.name: " ".join(one.description.split()) for section in listed for one in section.value},
        )


def _description(sections: Iterable[DocstringSection]) -> str:
    from griffe import DocstringSectionAdmonition, DocstringSectionText

    texts: list[str] = []
    for section in sections:
        if isinstance(section, DocstringSectionText):
            texts.append(section.value)
        elif isinstance(section, DocstringSectionAdmonition) and section.title not in _OMITTED:
            # griffe parses any `Word:` above an indented block as an admonition. Here it is description.
            texts.append(f"{section.title}:\n{indent(section.value.contents, '    ')}")
        else:
            break
    return "\n\n".join(texts).strip()
