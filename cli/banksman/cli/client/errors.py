"""Errors of the client commands."""

from __future__ import annotations

from banksman.cli.client.address import TOKEN_VARIABLE
from banksman.contracts.errors import BanksmanError, ErrorCode, Unavailable


class GatewayRefused(BanksmanError):
    """The gateway refused a request. The message is the gateway's; for a missing key it adds the remedy."""

    def __init__(self, message: str, code: str | None) -> None:
        self.code = _known(code)
        remedy = f"; set {TOKEN_VARIABLE} to your key" if self.code is ErrorCode.UNAUTHORIZED else ""
        super().__init__(f"{message}{remedy}")


def unreachable(url: str, why: object) -> Unavailable:
    """Return the error for a URL at which no gateway responds."""
    return Unavailable(f"no gateway responds at {url} ({why}); `banksman up` starts one")


def _known(code: str | None) -> ErrorCode:
    try:
        return ErrorCode(code or "")
    except ValueError:
        return ErrorCode.INTERNAL
