"""No text of a library reaches a client: every mistake in every request is stated in our own words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import Wire, parse
from banksman.gateway import composition, front
from banksman.gateway.interfaces.nats import endpoints

OF_LIBRARIES = re.compile(
    r"\b[Ii]nput\b(?! value)|should|Value error|pydantic|Expecting|[Dd]iscriminator|[Dd]ictionary|valid dict"
    r"|is not of type|valid under|instance|None\b|NoneType|type=|\bctx\b|iterable|UUID|\bre\.|\bset\b|tuple"
)
"""Words of pydantic, of its JSON parser, of Python and of JSON Schema libraries."""
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 3, 2.5, 10**30, "", "x y", "ü" * 3_000),
    *([], [None], {}, {"type": "x"}, {"unknown": 1}, [[]], [{"type": 3}]),
)
NATURAL = re.compile(r"^[\w.\[\]~/ -]+(:| must | is )")
"""A mistake begins with its field."""


def requests(base: type[BaseModel] = Wire) -> Iterator[type[BaseModel]]:
    """Yield the models of all requests of clients: bodies, frames and nested models."""
    assert composition and endpoints and front
    for model in base.__subclasses__():
        if not model.__pydantic_generic_metadata__["parameters"]:
            yield model
        yield from requests(model)


def mistakes(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the invalid value and the text of its error, for each field with each wrong value."""
    for body in (*WRONG, {"unknwon": 1}):
        yield from mistake(model, body)
    for name, field in model.model_fields.items():
        for wrong in WRONG:
            yield from mistake(model, {field.alias or name: wrong})


def mistake(model: type[BaseModel], body: Any) -> Iterator[tuple[str, str]]:
    try:
        parse(model, json.dumps(body))
    except BadInput as error:
        yield json.dumps(body)[:80], str(error)


MODELS = {model.__name__: model for model in requests()}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_mistake_in_a_request_is_stated_in_our_own_words(name: str) -> None:
    found = list(mistakes(MODELS[name]))
    foreign = [
        (sent, text)
        for sent, text in found
        if OF_LIBRARIES.search(re.sub(r"'[^']*'|got .*", "", text)) or not NATURAL.match(text)
    ]
    assert foreign == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "body: expected valid JSON; it is broken at line 1, column 2"),
        (b'{"a": NaN}', "body: expected valid JSON; NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "body: expected valid JSON; duplicate key 'a'"),
        (b"\xff", "body: expected valid UTF-8 without lone surrogates"),
    ],
)
def test_a_body_that_is_not_json_is_described_without_the_words_of_the_parser(body: bytes, text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(Wire, body)

    assert str(refused.value) == text


@pytest.mark.parametrize("text", ['{{"{0}": 1}}', '{{"{0}": 1, "{0}": 2}}', '{{"user": {{"{0}": 1}}}}'])
def test_an_error_is_short_although_a_key_is_long(text: str) -> None:
    """The text and the field of an error name a key that the client chose."""
    with pytest.raises(BadInput) as raised:
        parse(MODELS["NewKey"], text.format("k" * 100_000))

    assert len(str(raised.value)) + len(str(raised.value.details)) < 2_000
