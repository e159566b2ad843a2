"""References of steps to parameters and to the values of earlier steps. Nothing is evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from banksman.contracts.wire import JsonObject, JsonValue
from banksman.prompting.templates import Placeholder, look_up, parts_of
from banksman.sdk.workflows import WorkflowFailed

MAX_FILLED_CHARS = 200_000
"""Maximum characters of the texts and arguments of one step, because they may repeat a result many times."""


@dataclass
class Values:
    """The values that the steps of one run may refer to."""

    parameters: JsonObject
    steps: JsonObject = field(default_factory=dict[str, JsonValue])

    def text(self, step: str, template: str, most: int = MAX_FILLED_CHARS) -> str:
        """Return a text whose references are replaced by their values.

        Raises:
            WorkflowFailed: A value is missing, or the text has more than `most` characters.
        """
        return _Filling(self, step, most).text(template)

    def arguments(self, step: str, arguments: JsonObject) -> JsonObject:
        """Return arguments with the references in their texts replaced by the values.

        Raises:
            WorkflowFailed: A value is missing, or the arguments are too long.
        """
        filling = _Filling(self, step, MAX_FILLED_CHARS)
        return {name: filling.value(value) for name, value in arguments.items()}


@dataclass
class _Filling:
    """Fills the references of one step."""

    values: Values
    step: str
    left: int
    """Characters that may still be added."""

    def value(self, template: JsonValue) -> JsonValue:
        match template:
            case str():
                pieces = list(parts_of(template))
                # A text that consists of one reference becomes the value and keeps its type.
                alone = pieces[0] if len(pieces) == 1 else None
                return self._value(alone) if isinstance(alone, Placeholder) else self.text(template)
            case list():
                return [self.value(one) for one in template]
            case dict():
                return {name: self.value(one) for name, one in template.items()}
            case _:
                return template

    def text(self, template: str) -> str:
        return "".join(map(self._text, parts_of(template)))

    def _text(self, piece: str | Placeholder) -> str:
        if isinstance(piece, str):
            self._count(len(piece))
            return piece
        value = self._value(piece)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _value(self, reference: Placeholder) -> JsonValue:
        known: JsonObject = {"parameters": self.values.parameters, "steps": self.values.steps}
        value = look_up(reference.path, known)
        if value is None:
            value = reference.default
        if value is None:
            raise WorkflowFailed(f"{self.step}: {reference.path} has no value.")
        self._count(len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
        return value

    def _count(self, chars: int) -> None:
        self.left -= chars
        if self.left < 0:
            raise WorkflowFailed(f"{self.step}: the referenced values are too long.")


def references_in(template: JsonValue) -> Iterator[Placeholder]:
    """Return the references in the texts of a value.

    Raises:
        BadInput: Braces contain no name.
    """
    match template:
        case str():
            yield from (piece for piece in parts_of(template) if isinstance(piece, Placeholder))
        case list():
            for one in template:
                yield from references_in(one)
        case dict():
            for one in template.values():
                yield from references_in(one)
        case _:
            pass
