"""Sign-in of administrators at servers of the Model Context Protocol that demand OAuth.

A user is sent to the authorization server with a `state` and returns with it and a code. The state names the
tenant and the server, and is proved by a random part of which the server's record has the digest: it is valid
once, for a few minutes, and only for the sign-in that was begun last.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

from banksman.bus.mcp_access import AccessMissing
from banksman.contracts.calls import FileReply
from banksman.contracts.errors import BadInput, Conflict, NotFound, Unavailable
from banksman.contracts.ids import check_token
from banksman.contracts.mcp import HttpServer, McpServer
from banksman.contracts.mcp_sign_in import (
    Access,
    Authorization,
    DiscoverSignIn,
    OAuthClient,
    PendingSecrets,
    PendingSignIn,
    RequestToken,
)
from banksman.gateway.service.mcp_servers import McpServers, place_of
from banksman.runs.ports import Clock

SIGN_IN_TIME: Final = timedelta(minutes=10)
"""Time that a user has at the authorization server."""
REFUSED: Final = "this sign-in has ended or was not begun here: begin it again"


@dataclass(frozen=True, slots=True)
class Returned:
    """What a user brought back from the authorization server."""

    state: str
    code: str | None
    issuer: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """A sign-in that was done."""

    tenant: str
    server_id: str
    user: str


class McpSignIns:
    """The sign-ins. Every method raises `Unavailable` if the broker or a runner does not respond."""

    def __init__(self, servers: McpServers, clock: Clock) -> None:
        self._servers = servers
        self._clock = clock

    async def begin(
        self, tenant: str, user: str, server_id: str, redirect_uri: str, client: OAuthClient | None
    ) -> str:
        """Return the address at which the user signs in.

        Args:
            tenant: The tenant of the server.
            user: Who signs in.
            server_id: The server.
            redirect_uri: Where the authorization server sends the user back to.
            client: The client that the authorization server knows; None uses the one of the last sign-in, or
                registers one.

        Raises:
            NotFound: The tenant has no such server.
            Conflict: The server is none over HTTP, or offers no sign-in.
        """
        server = await self._servers.get(tenant, server_id)
        if not isinstance(server.transport, HttpServer):
            raise Conflict(f"server {server_id!r} is a program: nobody signs in at it")
        request = DiscoverSignIn(
            url=server.transport.url, redirect_uri=redirect_uri, client=client or self._known(tenant, server)
        )
        found = (await self._asked(tenant, request)).authorization
        if found is None:
            raise Unavailable("a runner of another version replied: upgrade it first")
        proof, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        kept = PendingSecrets(authorization=found, redirect_uri=redirect_uri, code_verifier=verifier)
        pending = PendingSignIn(
            state=_digest(proof),
            user=user,
            expires_at=self._clock.now() + SIGN_IN_TIME,
            sealed=self._servers.access.sealed(tenant, server_id, kept),
        )

        def changed(current: McpServer) -> McpServer:
            if current.transport != server.transport:
                raise Conflict(f"server {server_id!r} was changed meanwhile")
            return current.model_copy(update={"pending": pending})

        await self._servers.update(tenant, server_id, changed)
        return _address(found, redirect_uri, f"{tenant}.{server_id}.{proof}", verifier)

    async def finish(self, returned: Returned) -> Finished:
        """Exchange the code that a user brought back, store the tokens and list the tools of the server.

        Raises:
            Conflict: The state is none of ours, was used or has expired, or the user or the code was refused.
        """
        tenant, server, pending = await self._taken(returned.state)
        if returned.error is not None or returned.code is None:
            raise Conflict(f"the authorization server refused the sign-in at server {server.id!r}")
        try:
            kept = self._servers.access.unsealed(PendingSecrets, tenant, server.id, pending.sealed)
        except AccessMissing as error:
            raise Conflict(REFUSED) from error
        _check_issuer(kept.authorization, returned.issuer)
        reply = await self._asked(tenant, _exchange(kept, returned.code))
        if reply.token is None:
            raise Unavailable("a runner of another version replied: upgrade it first")
        access = Access(authorization=kept.authorization, token=reply.token)
        signed_in = self._servers.access.signed_in(tenant, server.id, pending.user, access)

        def changed(current: McpServer) -> McpServer:
            if _is_replaced(server, current):
                raise Conflict(f"server {server.id!r} was changed meanwhile: sign in again")
            return current.model_copy(update={"signed_in": signed_in, "needs_sign_in": False})

        await self._servers.looked(tenant, await self._servers.update(tenant, server.id, changed))
        return Finished(tenant, server.id, pending.user)

    async def forget(self, tenant: str, server_id: str) -> None:
        """Forget the tokens of a server: its tools are not called before an administrator signs in again.

        Raises:
            NotFound: The tenant has no such server, or the server has no sign-in.
        """

        def changed(server: McpServer) -> McpServer:
            if server.signed_in is None and server.pending is None:
                raise NotFound("sign-in", server_id)
            needs = server.needs_sign_in or server.signed_in is not None
            return server.model_copy(update={"signed_in": None, "pending": None, "needs_sign_in": needs})

        await self._servers.update(tenant, server_id, changed)

    def _known(self, tenant: str, server: McpServer) -> OAuthClient | None:
        """Return the client of the last sign-in at a server; None if there is none that can be read."""
        if server.signed_in is None:
            return None
        try:
            return self._servers.access.opened(tenant, server, server.signed_in).authorization.client
        except AccessMissing:
            return None

    async def _asked(self, tenant: str, request: DiscoverSignIn | RequestToken) -> FileReply:
        reply = await self._servers.ask_runner(tenant, request)
        if reply.error is not None:
            raise Conflict(reply.error)
        return reply

    async def _taken(self, state: str) -> tuple[str, McpServer, PendingSignIn]:
        """Return the tenant, the server and the sign-in of a state, which is valid no more."""
        tenant, _, rest = state.partition(".")
        server_id, _, proof = rest.partition(".")
        taken: list[PendingSignIn] = []

        def changed(server: McpServer) -> McpServer:
            pending = server.pending
            if pending is None or not hmac.compare_digest(pending.state, _digest(proof)):
                raise Conflict(REFUSED)
            if pending.expires_at < self._clock.now():
                raise Conflict(REFUSED)
            taken[:] = [pending]
            return server.model_copy(update={"pending": None})

        try:
            server = await self._servers.update(check_token(tenant, "state"), server_id, changed)
        except (NotFound, BadInput) as error:
            raise Conflict(REFUSED) from error
        return tenant, server, taken[0]


def _is_replaced(server: McpServer, current: McpServer) -> bool:
    """Return whether a server has another address than before, for which a token must not be stored."""
    same = server.created_at == current.created_at
    return not (same and place_of(server.transport) == place_of(current.transport))


def _check_issuer(authorization: Authorization, issuer: str | None) -> None:
    """Check that a code comes from the authorization server to which the user was sent (RFC 9207).

    Raises:
        Conflict: It comes from another one, or from one that no longer names itself.
    """
    if issuer is None and not authorization.states_issuer:
        return
    if issuer != authorization.issuer:
        raise Conflict("the code comes from another authorization server")


def _exchange(kept: PendingSecrets, code: str) -> RequestToken:
    return RequestToken(
        token_endpoint=kept.authorization.token_endpoint,
        client=kept.authorization.client,
        form={
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": kept.redirect_uri,
            "code_verifier": kept.code_verifier,
            "resource": kept.authorization.resource,
        },
    )


def _address(found: Authorization, redirect_uri: str, state: str, verifier: str) -> str:
    """Return the address of the authorization server's page, with what identifies this sign-in."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": found.client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": found.resource,
        **({"scope": found.scope} if found.scope else {}),
    }
    separator = "&" if "?" in found.authorization_endpoint else "?"
    return f"{found.authorization_endpoint}{separator}{urlencode(query)}"


def _digest(proof: str) -> str:
    return hashlib.sha256(proof.encode("utf-8", "surrogatepass")).hexdigest()
