"""Refuse unknown fields of a request, and suggest the field that the client may have meant.

Models that are also stored ignore unknown fields, because a newer version may have written them. In a request
an unknown field is a mistake of the client, at every level.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from pydantic import BaseModel

from banksman.contracts.errors import BadInput

MAX_NAME_CHARS = 64
"""Maximum length of names that are compared; the time grows with its square."""


def check_fields(annotation: Any, value: Any, path: tuple[str, ...] = ()) -> None:
    """Check that the model of a request defines every field.

    Args:
        annotation: The type of the value. Only models, and the values in models and lists, are checked.
        value: The request as parsed JSON, which need not be valid.
        path: The path of the value.

    Raises:
        BadInput: A field is unknown. The error names the first one.
    """
    match value:
        case list():
            for number, item in enumerate(cast(list[Any], value)):
                check_fields(annotation, item, (*path, str(number)))
        case dict():
            given = cast(dict[str, Any], value)
            if forms := _possible(annotation, given.get("type")):
                for name, item in given.items():
                    _check_field(forms, name, item, path)
        case _:
            pass


def _check_field(forms: Sequence[_Form], name: str, value: Any, path: tuple[str, ...]) -> None:
    for form in forms:
        if name in form.fields:
            if isinstance(value, dict | list):
                check_fields(form.fields[name], value, (*path, name))
            return
    near = _nearest(name, {known for form in forms for known in form.fields})
    advice = f"; did you mean {near}?" if near else ""
    raise BadInput(".".join((*path, name)), None, f"is not a known field{advice}")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    # Imported here, because only a mistake needs difflib.
    from difflib import get_close_matches

    return None if len(name) > MAX_NAME_CHARS else next(iter(get_close_matches(name, known, n=1)), None)


class _Form(NamedTuple):
    """A model that an object may be."""

    tag: object
    """The value of its field `type`; None without one."""
    fields: Mapping[str, Any]
    """The annotations of its fields, by their names in requests."""


_FORMS: dict[int, tuple[Any, tuple[_Form, ...]]] = {}
"""Cache of the models of annotations, by identity: annotations are not hashable, and requests share them."""


def _possible(annotation: Any, tag: object) -> Sequence[_Form]:
    """Return the models that an object may be; of a discriminated union, only the one with its `type`."""
    known = _FORMS.get(id(annotation))
    if known is None:
        known = _FORMS[id(annotation)] = annotation, tuple(map(_form, _models(annotation)))
    forms = known[1]
    return [form for form in forms if form.tag in (None, tag)] if len(forms) > 1 else forms


def _form(model: type[BaseModel]) -> _Form:
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return _Form(_tag(model), fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of a type, including members of unions and items of lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        for member in get_args(annotation):
            yield from _models(member)


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("type")
    literal = None if field is None else field.annotation
    return get_args(literal)[0] if get_origin(literal) is Literal else None
