"""The values that workflows request: list the requests, and provide a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.client.parameters import parse_value
from banksman.cli.output import Exit, clean
from banksman.contracts.errors import NotFound
from banksman.contracts.ids import check_token


def inputs(address: Address, *, as_json: bool = False) -> Exit:
    """List the open requests for a value. The exit code is a warning if there are any."""
    with Http.to(address) as http:
        requests = _open(http)
    for request in requests:
        if as_json:
            output.print_json(request)
        else:
            output.print_line(f"{request['request_id']}  expires {request['expires_at']}")
            output.print_line(f"    {clean(str(request['message']))}")
    if not requests and not as_json:
        output.print_line("no open requests for a value")
    return Exit.WARNING if requests else Exit.OK


def provide(address: Address, request_id: str, value: str, *, as_json: bool = False) -> Exit:
    """Provide the value that a workflow requested.

    Raises:
        NotFound: no open request has this id.
        GatewayRefused: the value does not match the request's schema, or the request already has a value.
    """
    check_token(request_id, "request")
    with Http.to(address) as http:
        request = next((one for one in _open(http) if one["request_id"] == request_id), None)
        if request is None:
            raise NotFound("open request for a value", request_id)
        body = {"value": parse_value(value, request["schema"])}
        reply = http.send("POST", f"/context/inputs/{request_id}", body)
    if as_json:
        output.print_json(reply)
    else:
        output.print_line(f"provided by {clean(str(reply['resolved_by']))}")
    return Exit.OK


def _open(http: Http) -> list[Mapping[str, Any]]:
    return cast(list[Mapping[str, Any]], http.items("/context/inputs"))
