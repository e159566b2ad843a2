"""The gateway's HTTP door."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import httpx

from banksman.cli.client.address import Address
from banksman.cli.client.errors import GatewayRefused, unreachable

_TIMEOUT_S = 30.0


class Http:
    """Requests to one gateway."""

    def __init__(self, client: httpx.Client, address: Address) -> None:
        self._client = client
        self._address = address

    @classmethod
    @contextmanager
    def to(cls, address: Address) -> Generator[Http]:
        """A client while the context is open."""
        with httpx.Client(
            base_url=address.url, headers=address.headers, timeout=_TIMEOUT_S, trust_env=not address.local
        ) as client:
            yield cls(client, address)

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON at a path.

        Raises:
            GatewayRefused: it answered with an error.
            Unavailable: it does not answer.
        """
        try:
            answer = self._client.get(path, params=query)
        except httpx.HTTPError as error:
            raise unreachable(self._address.url, str(error) or type(error).__name__) from error
        if answer.is_success:
            return answer.json()
        raise _refused(answer)


def _refused(answer: httpx.Response) -> GatewayRefused:
    try:
        error = cast(Mapping[str, Any], answer.json())["error"]
        return GatewayRefused(str(error["message"]), error.get("code"))
    except (ValueError, KeyError, TypeError):
        return GatewayRefused(f"the gateway answered {answer.status_code} at {answer.url.path}", None)
