"""Sign-in of administrators at servers of the Model Context Protocol that require OAuth.

A user is sent to the authorization server with a `state`, and returns with the state and a code. The state
names the tenant and the server, and has a random part whose digest is in the server's record. It is valid
once, for a few minutes, and only for the last sign-in that was begun.

A state proves who sent the user, not who returned: an administrator could send the address to another person,
whose account the tenant would then use. So only the user who began a sign-in can finish it: in the same
browser, which has a cookie, or through the API with a key, by sending the address to which the browser was
redirected.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Self, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from banksman.bus.mcp_access import AccessMissing
from banksman.contracts import mcp
from banksman.contracts.calls import FileReply
from banksman.contracts.errors import BadInput, Conflict, NotFound, Unavailable
from banksman.contracts.ids import check_token
from banksman.gateway.mcp_servers.configuration import place_of
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.operation.caller import Caller
from banksman.runs.ports import Clock

CALLBACK: Final = "/context/mcp-sign-in"
"""Where authorization servers redirect users. Not below `mcp-servers`, where it could equal a server's id."""
SIGN_IN_TIME: Final = timedelta(minutes=10)
REFUSED: Final = "this sign-in has ended or was not begun here: begin it again"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    url: str = field(repr=False)
    """The page of the authorization server, with the state."""
    state: str = field(repr=False)
    browser: str = field(repr=False)
    """The value that the browser must return in its cookie to finish the sign-in without a key."""


class BegunElsewhere(Conflict):
    """A sign-in was begun in another browser or by a client of the API, and is not finished."""


class SignInEnded(Conflict):
    """The state of a sign-in is unknown, was used, or has expired."""


@dataclass(frozen=True, slots=True)
class McpSignIns:
    """The sign-ins. Every method raises `Unavailable` if the broker or a runner does not respond."""

    servers: ConfiguredServers
    clock: Clock

    async def begin(
        self, caller: Caller, server_id: str, redirect_uri: str, client: mcp.OAuthClient | None
    ) -> Begun:
        """Begin a sign-in, which replaces an earlier one that has not been finished.

        Without a `client` that the authorization server knows, it uses the client of the last sign-in, or
        registers one. Raises `Conflict` if the server is a program, or offers no sign-in.
        """
        tenant = caller.tenant
        server = await self.servers.get(caller, server_id)
        if not isinstance(server.transport, mcp.HttpServer):
            raise Conflict(f"server {server_id!r} is a program, which has no sign-in")
        request = mcp.DiscoverSignIn(
            url=server.transport.url, redirect_uri=redirect_uri, client=client or self._known(tenant, server)
        )
        found = _known_part((await self._asked(tenant, request)).authorization)
        proof, verifier, browser = (secrets.token_urlsafe(size) for size in (32, 64, 32))
        kept = mcp.PendingSecrets(authorization=found, redirect_uri=redirect_uri, code_verifier=verifier)
        pending = mcp.PendingSignIn(
            state=_digest(proof),
            user=caller.user,
            browser=_digest(browser),
            expires_at=self.clock.now() + SIGN_IN_TIME,
            sealed=self.servers.access.sealed(tenant, server_id, kept),
        )

        def changed(current: mcp.McpServer) -> mcp.McpServer:
            if current.transport != server.transport:
                raise Conflict(f"server {server_id!r} was changed meanwhile")
            return current.model_copy(update={"pending": pending})

        await self.servers.update(tenant, server_id, changed)
        state = f"{tenant}.{server_id}.{proof}"
        return Begun(authorization_url(found, redirect_uri, state, verifier), state, browser)

    async def finish_in_browser(self, returned: Returned, browser: str) -> tuple[Caller, str]:
        """Finish the sign-in of a user whose browser returned, with the value of its cookie.

        Returns the user and the server.

        Raises:
            BegunElsewhere: Another client began the sign-in; its state remains valid.
            SignInEnded: The state is unknown, was used, or has expired.
            Conflict: The authorization server refused the user or the code.
        """
        tenant, _, rest = returned.state.partition(".")
        server_id = rest.partition(".")[0]

        def check(pending: mcp.PendingSignIn) -> None:
            if not hmac.compare_digest(pending.browser, _digest(browser)):
                raise BegunElsewhere("this sign-in was begun elsewhere")

        user, _ = await self._finish(tenant, server_id, returned, check)
        return Caller(tenant, user), server_id

    async def finish_for(self, caller: Caller, server_id: str, url: str) -> LookedAt:
        """Finish the sign-in of a user of the API with the address to which a browser was redirected.

        Raises `Conflict` as `finish_in_browser`, or if the state belongs to another user or server.
        """
        await self.servers.get(caller, server_id)
        returned = Returned.at(url)

        def check(pending: mcp.PendingSignIn) -> None:
            if pending.user != caller.user:
                raise Conflict(REFUSED)

        _, looked_at = await self._finish(caller.tenant, server_id, returned, check)
        return looked_at

    async def _finish(
        self, tenant: str, server_id: str, returned: Returned, check: Callable[[mcp.PendingSignIn], None]
    ) -> tuple[str, LookedAt]:
        """Finish a sign-in and list the server's tools, or store the problem; return who signed in."""
        server, pending = await self._consume(tenant, server_id, returned.state, check)
        try:
            updated = await self._granted(tenant, server, pending, returned)
        except (Conflict, Unavailable) as error:
            await self.servers.failed(tenant, server_id, "sign_in", error.public)
            raise
        return pending.user, await self.servers.try_look(tenant, updated)

    async def _granted(
        self, tenant: str, server: mcp.McpServer, pending: mcp.PendingSignIn, returned: Returned
    ) -> mcp.McpServer:
        if returned.error is not None or returned.code is None:
            raise Conflict(f"the authorization server refused the sign-in at server {server.id!r}")
        try:
            kept = self.servers.access.unsealed(mcp.PendingSecrets, tenant, server.id, pending.sealed)
        except AccessMissing as error:
            raise Conflict(REFUSED) from error
        check_issuer(kept.authorization, returned.issuer)
        token = _known_part((await self._asked(tenant, exchange(kept, returned.code))).token)
        access = mcp.Access(authorization=kept.authorization, token=token)
        signed_in = self.servers.access.signed_in(tenant, server.id, pending.user, access)

        def changed(current: mcp.McpServer) -> mcp.McpServer:
            # A token is for one server at one address.
            same_place = place_of(server.transport) == place_of(current.transport)
            if server.created_at != current.created_at or not same_place:
                raise Conflict(f"server {server.id!r} was changed meanwhile: sign in again")
            return current.model_copy(update={"signed_in": signed_in, "needs_sign_in": False})

        return await self.servers.update(tenant, server.id, changed)

    async def forget(self, caller: Caller, server_id: str) -> None:
        """Delete the tokens of a server: its tools cannot be called before the next sign-in."""

        def changed(server: mcp.McpServer) -> mcp.McpServer:
            if server.signed_in is None and server.pending is None:
                raise NotFound("sign-in", server_id)
            needs = server.needs_sign_in or server.signed_in is not None
            return server.model_copy(update={"signed_in": None, "pending": None, "needs_sign_in": needs})

        await self.servers.update(caller.tenant, server_id, changed)

    def _known(self, tenant: str, server: mcp.McpServer) -> mcp.OAuthClient | None:
        if server.signed_in is None:
            return None
        try:
            return self.servers.access.opened(tenant, server, server.signed_in).authorization.client
        except AccessMissing:
            return None

    async def _asked(self, tenant: str, request: mcp.DiscoverSignIn | mcp.RequestToken) -> FileReply:
        reply = await self.servers.ask_runner(tenant, request)
        if reply.error is not None:
            raise Conflict(reply.error)
        return reply

    async def _consume(
        self, tenant: str, server_id: str, state: str, check: Callable[[mcp.PendingSignIn], None]
    ) -> tuple[mcp.McpServer, mcp.PendingSignIn]:
        """Return the server and the sign-in of a state, and invalidate the state unless `check` raises."""
        proof = _digest(state.rpartition(".")[2])
        taken: list[mcp.PendingSignIn] = []

        def changed(server: mcp.McpServer) -> mcp.McpServer:
            pending = server.pending
            if pending is None or not hmac.compare_digest(pending.state, proof):
                raise SignInEnded(REFUSED)
            if pending.expires_at < self.clock.now():
                raise SignInEnded(REFUSED)
            check(pending)
            taken[:] = [pending]
            return server.model_copy(update={"pending": None})

        try:
            server = await self.servers.update(check_token(tenant, "state"), server_id, changed)
        except (NotFound, BadInput) as error:
            raise SignInEnded(REFUSED) from error
        return server, taken[0]


def _known_part(part: T | None) -> T:
    if part is None:
        raise Unavailable("a runner of another version replied: upgrade it first")
    return part


def _digest(proof: str) -> str:
    return hashlib.sha256(proof.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Returned:
    state: str = field(repr=False)
    code: str | None = field(repr=False)
    issuer: str | None
    error: str | None

    @classmethod
    def at(cls, url: str) -> Self:
        query = parse_qs(urlsplit(url).query)

        def value(name: str) -> str | None:
            return query.get(name, [None])[0]

        return cls(value("state") or "", value("code"), value("iss"), value("error"))


def check_issuer(authorization: mcp.Authorization, issuer: str | None) -> None:
    """Raise `Conflict` if a code comes from another server than the user was sent to (RFC 9207)."""
    if issuer is None and not authorization.states_issuer:
        return
    if issuer != authorization.issuer:
        raise Conflict("the code comes from another authorization server")


def exchange(kept: mcp.PendingSecrets, code: str) -> mcp.RequestToken:
    return mcp.RequestToken(
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


def authorization_url(found: mcp.Authorization, redirect_uri: str, state: str, verifier: str) -> str:
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
