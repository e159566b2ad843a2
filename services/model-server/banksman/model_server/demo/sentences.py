from __future__ import annotations

import re
from dataclasses import dataclass

from banksman.model_server.demo.literals import TOKEN, Literals
from banksman.model_server.demo.rules import PATH, VERBS, steps_of
from banksman.model_server.demo.steps import ListFiles, Read, ReadingStep, Run, Step, WriteReport

_MAX_REQUEST_CHARS = 100_000
_MAX_WORDS_CHARS = 2_000
"""Longer requests are not read: the patterns' time may grow faster than the text."""

_JOINER = r"(?:and|then|also|next|finally|afterwards|after\s+that|please|now)\b,?\s+"
_POLITE = (
    r"(?:please|(?:could|can|would|will)\s+you|i\s+want\s+you\s+to|i(?:'d|\s+would)\s+like\s+you\s+to|first|hey|hi"
    r"|hello|ok)\b[,:]?\s+"
)
_BEGINNING = re.compile(rf"^(?:{_POLITE}|{_JOINER})+", re.IGNORECASE)
_ENDING = re.compile(r"(?:,?\s+(?:please|thanks|thank\s+you)|[.!?\s])+$", re.IGNORECASE)
_SEPARATOR = re.compile(
    rf"((?:\s*[;\n,.!?]+\s*(?:{_JOINER})*|\s+(?:{_JOINER})+)(?=(?:{VERBS})\b)"
    rf"|,?\s+(?:and\s+)?then\s+(?={TOKEN}\s*(?:$|[;,.])))",
    re.IGNORECASE,
)
_NO_STEP = re.compile(
    r"(?:tell|show|give|let)\s+(?:me|us)\b.*|explain\b.*|what\s+does\s+it\b.*|thanks|thank\s+you",
    re.IGNORECASE | re.DOTALL,
)
"""What the final answer does anyway."""
_IN_ORDER = re.compile(r"then|after|finally|next|[;\n]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks for."""

    batches: tuple[tuple[Step, ...], ...] = ()
    """The steps in order; those of one batch may run at once."""
    not_understood: tuple[str, ...] = ()
    """The clauses that no rule matches, when another one does."""


def read_request(text: str) -> Plan:
    """Find the steps that a request asks for; none when no rule matches."""
    if len(text) > _MAX_REQUEST_CHARS:
        return Plan()
    literals = Literals(text.strip())
    if len(literals.masked) > _MAX_WORDS_CHARS:
        return Plan()
    batches: list[list[Step]] = []
    unknown: list[str] = []
    for clause, in_order in _clauses(literals.masked):
        steps = steps_of(clause, literals)
        if not steps:
            unknown += [] if _NO_STEP.fullmatch(clause) else [literals.source(clause)]
        elif batches and not in_order and _only_read([*batches[-1], *steps]):
            batches[-1] += steps
        else:
            batches += _in_batches(steps, has_steps_before=bool(batches))
    return Plan(tuple(map(tuple, batches)), tuple(unknown) if batches else ())


def _clauses(masked: str) -> list[tuple[str, bool]]:
    """Each clause, and whether a word before it asks for that order."""
    parts = _SEPARATOR.split(masked)
    separators = ["", *parts[1::2]]
    clauses = [_ENDING.sub("", _BEGINNING.sub("", part.strip())) for part in parts[::2]]
    return [
        (clause, _IN_ORDER.search(separator) is not None)
        for clause, separator in zip(clauses, separators, strict=True)
        if clause
    ]


def _in_batches(steps: list[Step], *, has_steps_before: bool) -> list[list[Step]]:
    """The batches of one clause; a report about files reads them first when nothing was read."""
    first = steps[0]
    if isinstance(first, WriteReport) and not has_steps_before:
        about = first.about or ""
        return [[Read(about) if re.fullmatch(PATH, about) else ListFiles()], [first]]
    at_once = _only_read(steps) or all(isinstance(step, Run) for step in steps)
    return [steps] if at_once else [[step] for step in steps]


def _only_read(steps: list[Step]) -> bool:
    return all(isinstance(step, ReadingStep) for step in steps)
