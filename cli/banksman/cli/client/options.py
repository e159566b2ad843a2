"""Options and parameters of the commands that use a gateway."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token

if TYPE_CHECKING:
    from banksman.cli.client.gateway import GatewayClient

Url = Annotated[
    str | None, typer.Option("--url", help="URL of the gateway (default: the gateway running here).")
]
Conversation = Annotated[
    str | None, typer.Option("--conversation", "-c", help="Continue this conversation (default: a new one).")
]


@contextmanager
def gateway(url: str | None) -> Generator[GatewayClient]:
    """Return the gateway of the option, or the default one; its connections close with the context."""
    from banksman.cli.client.gateway import GatewayClient, find_url

    with GatewayClient.connected(find_url(url)) as found:
        yield found


_NAME = re.compile(r"[^\W\d][\w-]*")
"""Pattern of parameter names: it matches the `x` of `x=1`, but not the `1 ` of `1 = one`."""


def read_parameters(api: GatewayClient, workflow: str, given: list[str]) -> dict[str, Any]:
    """Return the parameters of a workflow from NAME=VALUE arguments, with the types that its form declares.

    An argument that does not begin with `NAME=` is the value of the next positional parameter.
    """
    form = cast(Mapping[str, Any], api.call("workflow.read", check_token(workflow, "workflow")))
    schema = cast(Mapping[str, Any], form["parameters_schema"])
    properties = cast(Mapping[str, Any], schema.get("properties", {}))
    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        left = [one for one in schema.get("x-positional", ()) if one not in found]
        looks_named = bool(equals) and _NAME.fullmatch(name) is not None
        known = bool(equals) and (
            name in properties or (looks_named and bool(schema.get("additionalProperties")))
        )
        if looks_named and not known:
            # A misspelt name must not become the value of another parameter.
            text = f"; to pass the text itself, write {left[0]}={word}" if left else ""
            raise BadInput("parameter", word, f"NAME one of {', '.join(properties) or 'none'}{text}")
        if not known:
            if not left:
                raise BadInput("parameter", word, "NAME=VALUE")
            name, value = left[0], word
        found[name] = parse_value(value, properties.get(name, {}))
    return found


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value that a user typed: the text if the schema allows text, otherwise the JSON value."""
    kinds = (schema.get("type"), *(one.get("type") for one in schema.get("anyOf", ())))
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # `version=1.0` is the text 1.0. `version=null` is null if the form allows null, otherwise the text.
    return text if "string" in kinds and not (value is None and "null" in kinds) else value


def read_call(operation: str, given: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the ids in the path of an operation, and the fields of its body or query."""
    from banksman.sdk.transports.http import PARAMETER, ROUTES

    if operation not in ROUTES:
        near = ", ".join(get_close_matches(operation, ROUTES)) or ", ".join(sorted(ROUTES))
        raise BadInput("operation", operation, f"the name of an operation: {near}")
    count = len(PARAMETER.findall(ROUTES[operation][1]))
    fields: dict[str, Any] = {}
    for word in given[count:]:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadInput("parameter", word, f"NAME=VALUE after {count} values of the path")
        fields[name] = sys.stdin.read().rstrip("\r\n") if text == "-" else parse_value(text, {})
    return tuple(given[:count]), fields
