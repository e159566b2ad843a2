"""The gateway's HTTP API."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import httpx

from banksman.cli.client.address import Address
from banksman.cli.client.errors import GatewayRefused, unreachable

_TIMEOUT_S = 30.0


class Http:
    """HTTP client of one gateway."""

    def __init__(self, client: httpx.Client, address: Address) -> None:
        self._client = client
        self._address = address

    @classmethod
    @contextmanager
    def to(cls, address: Address) -> Generator[Http]:
        """Return a client that is open within the context."""
        with httpx.Client(
            base_url=address.url, headers=address.headers, timeout=_TIMEOUT_S, trust_env=not address.local
        ) as client:
            yield cls(client, address)

    def get(self, path: str, **query: str | int) -> Any:
        """Return the JSON body at a path.

        Raises:
            GatewayRefused: the gateway responds with an error.
            Unavailable: the gateway does not respond.
        """
        return self._request("GET", path, params=query)

    def items(self, path: str) -> list[Any]:
        """Return the list of items at a path.

        Raises:
            GatewayRefused: the response has no list: the server is not a gateway, or has another version.
            Unavailable: the gateway does not respond.
        """
        body = self.get(path)
        found = cast(Mapping[str, Any], body).get("items") if isinstance(body, dict) else None
        if not isinstance(found, list):
            raise GatewayRefused("the gateway's response has no list 'items'", None)
        return cast(list[Any], found)

    def send(self, method: Literal["POST", "PUT", "DELETE"], path: str, body: object = None) -> Any:
        """Send a request with a JSON body; return the JSON of the response, None if it is empty.

        Raises:
            GatewayRefused: the gateway responds with an error.
            Unavailable: the gateway does not respond.
        """
        return self._request(method, path, json=body)

    def _request(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(self._address.url, str(error) or type(error).__name__) from error
        if response.is_success:
            return response.json() if response.content else None
        raise _refused(response)


def _refused(response: httpx.Response) -> GatewayRefused:
    try:
        error = cast(Mapping[str, Any], response.json())["error"]
        return GatewayRefused(str(error["message"]), error.get("code"))
    except (ValueError, KeyError, TypeError):
        return GatewayRefused(
            f"the gateway responded with status {response.status_code} at {response.url.path}", None
        )
