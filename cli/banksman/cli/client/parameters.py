"""Arguments of workflows, by name or by position, and values that a user types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from banksman.cli.client.http import Http
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token


def read_parameters(http: Http, workflow: str, given: list[str]) -> dict[str, Any]:
    """Return the parameters that NAME=VALUE arguments give a workflow, as its form declares their types.

    An argument without the name of a parameter is the value of the next positional one.

    Raises:
        BadInput: an argument has no name, and no positional parameter is left.
        GatewayRefused: there is no such workflow.
    """
    form = cast(Mapping[str, Any], http.get(f"/workflows/{check_token(workflow, 'workflow')}"))
    schema = cast(Mapping[str, Any], form["parameters_schema"])
    properties = cast(Mapping[str, Any], schema.get("properties", {}))
    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        left = [one for one in schema.get("x-positional", ()) if one not in found]
        if left and not (equals and name in properties):
            name, value = left[0], word
        elif not equals or not name:
            raise BadInput("parameter", word, "NAME=VALUE")
        found[name] = parse_value(value, properties.get(name, {}))
    return found


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return a typed value: text where the schema wants text, otherwise JSON if it is valid."""
    kinds = (schema.get("type"), *(one.get("type") for one in schema.get("anyOf", ())))
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # `version=1.0` is the text 1.0, and `version=null` no version where the form allows that.
    return text if "string" in kinds and not (value is None and "null" in kinds) else value
