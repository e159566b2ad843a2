from __future__ import annotations

import re

from banksman.model_server.demo.literals import TOKEN, Literals
from banksman.model_server.demo.rules import READING, VERBS, Step, step_of, steps_of

_MAX_REQUEST_CHARS = 100_000
_MAX_WORDS_CHARS = 2_000
"""Longer requests are not parsed, because the time to match the patterns may grow faster than the text."""

_JOINER = r"(?:and|then|also|next|finally|after\s+that|please|now)\b,?\s+"
_POLITE = r"(?:please|(?:could|can|would|will)\s+you|first|hey|hi|hello|ok)\b[,:]?\s+"
_BEGINNING = re.compile(rf"^(?:{_POLITE}|{_JOINER})+", re.IGNORECASE)
_ENDING = re.compile(r"(?:,?\s+(?:please|thanks|thank\s+you)|[.!?\s])+$", re.IGNORECASE)
_SEPARATOR = re.compile(
    rf"((?:\s*[;\n,.!?]+\s*(?:{_JOINER})*|\s+(?:{_JOINER})+)(?=(?:{VERBS})\b)"
    rf"|,?\s+(?:and\s+)?then\s+(?={TOKEN}\s*(?:$|[;,.])))",
    re.IGNORECASE,
)
_IGNORED = re.compile(
    r"(?:(?:tell|show|give)\s+(?:me|us)|explain)\b.*|thanks|thank\s+you", re.IGNORECASE | re.DOTALL
)
"""Clauses that the final reply fulfils anyway."""
_IN_ORDER = re.compile(r"then|after|finally|next|[;\n]", re.IGNORECASE)


def read_request(text: str, last_path: str) -> tuple[list[list[Step]], list[str]]:
    """Find the steps of a request, in which "it" is `last_path` or the file of the step before.

    Returns:
        Batches of steps in order, where the steps of a batch can run in parallel, and the clauses that no
        rule matches. If no clause matches a rule, both are empty.
    """
    batches: list[list[Step]] = []
    unknown: list[str] = []
    literals = Literals(text.strip() if len(text) <= _MAX_REQUEST_CHARS else "")
    for clause, in_order in _clauses(literals.masked):
        steps = steps_of(clause, literals)
        if not steps:
            unknown += [] if _IGNORED.fullmatch(clause) else [literals.source(clause)]
            continue
        if steps[0].kind == "read" and not steps[0].subject:
            steps = [step_of("read", last_path)]
        last_path = str(steps[-1].arguments.get("path", last_path))
        if steps[0].kind == "report" and not batches:
            batches.append([step_of("list", "")])
        kinds = {step.kind for step in (*steps, *(batches[-1] if batches else ()))}
        if batches and not in_order and kinds <= READING:
            batches[-1] += steps
        else:
            batches.append(steps)
    return batches, unknown if batches else []


def _clauses(masked: str) -> list[tuple[str, bool]]:
    """Return each clause, and whether the words before it require its order."""
    parts = _SEPARATOR.split(masked) if len(masked) <= _MAX_WORDS_CHARS else []
    clauses = [_ENDING.sub("", _BEGINNING.sub("", part.strip())) for part in parts[::2]]
    order = [False, *(_IN_ORDER.search(separator) is not None for separator in parts[1::2])]
    return [(clause, in_order) for clause, in_order in zip(clauses, order, strict=False) if clause]
