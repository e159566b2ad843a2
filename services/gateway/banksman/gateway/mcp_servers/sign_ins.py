"""Sign-in at servers of the Model Context Protocol that require OAuth, for a tenant or for one user.

A user is sent to the authorization server with a `state`, and returns with the state and a code. The state
names the record for the sign-in, of the server or of the user's account there, and has a random part whose
digest is in the record. It is valid once, for a few minutes, and only for the last sign-in that was begun.

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

from banksman.bus.mcp_access import Changes, Tokens
from banksman.contracts import mcp
from banksman.contracts.errors import BadInput, Conflict, NotFound, Unavailable
from banksman.contracts.runner_requests import DiscoverSignIn, FileReply, RequestToken
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.operation.caller import Caller
from banksman.runs.ports import Clock

CALLBACK: Final = "/context/mcp-sign-in"
"""Where authorization servers redirect users. Not below `mcp-servers`, where it could equal a server's id."""
SIGN_IN_TIME: Final = timedelta(minutes=10)
REFUSED: Final = "this sign-in has ended or was not begun here: begin it again"

Record = mcp.McpServer | mcp.McpAccount
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
        self, caller: Caller, server_id: str, redirect_uri: str, client: mcp.OAuthClient | None, *, own: bool
    ) -> Begun:
        """Begin a sign-in, which replaces an earlier one that has not been finished.

        Without a `client` that the authorization server knows, it uses the client of the last sign-in, or
        registers one. `own` is for users who are no administrators; then no tools are listed afterwards.

        Raises `Conflict` if the server is a program, or offers no sign-in.
        """
        server = await self._server(caller, server_id, own)
        tenant, key, account = caller.tenant, self._key(caller, server), None
        if not isinstance(server.transport, mcp.HttpServer):
            raise Conflict(f"server {server_id!r} is a program, which has no sign-in")
        known = client or self._known(tenant, server)
        request = DiscoverSignIn(url=server.transport.url, redirect_uri=redirect_uri, client=known)
        found = _known_part((await self._asked(tenant, request)).authorization)
        if server.sign_in == "user":
            account = mcp.new_account(server, caller.user)
            await self.servers.access.users.bucket.create(key, account)
            await self._share(tenant, server, found.client)
        proof, verifier, browser = (secrets.token_urlsafe(size) for size in (32, 64, 32))
        kept = mcp.PendingSecrets(authorization=found, redirect_uri=redirect_uri, code_verifier=verifier)
        pending = mcp.PendingSignIn(
            state=_digest(proof),
            user=caller.user,
            browser=_digest(browser),
            expires_at=self.clock.now() + SIGN_IN_TIME,
            sealed=self._tokens(key).sealed(key, kept),
            lists=not own,
        )

        def changed(current: Record) -> Changes:
            if current.place == server.place:
                return {"pending": pending}
            if account is None:
                raise Conflict(f"server {server_id!r} was changed meanwhile")
            # What the user got for an earlier address ends.
            return {**dict(account), "pending": pending}

        await self._tokens(key).update(key, changed)
        state = f"{key}.{proof}"
        return Begun(authorization_url(found, redirect_uri, state, verifier), state, browser)

    async def finish_in_browser(self, returned: Returned, browser: str) -> tuple[Caller, mcp.McpServer]:
        """Finish the sign-in of a user whose browser returned, with the value of its cookie.

        Returns the user and the server.

        Raises:
            BegunElsewhere: Another client began the sign-in; its state remains valid.
            SignInEnded: The state is unknown, was used, or has expired.
            Conflict: The authorization server refused the user or the code.
        """
        key = returned.state.rpartition(".")[0]

        def check(pending: mcp.PendingSignIn) -> None:
            if not hmac.compare_digest(pending.browser, _digest(browser)):
                raise BegunElsewhere("this sign-in was begun elsewhere")

        caller, looked_at = await self._finish(key, returned, check)
        return caller, looked_at.server

    async def finish_for(self, caller: Caller, server_id: str, url: str) -> LookedAt:
        """Finish the sign-in of a user of the API with the address to which a browser was redirected.

        Raises `Conflict` as `finish_in_browser`, or if the state belongs to another user or server.
        """
        key = self._key(caller, await self.servers.get(caller, server_id))

        def check(pending: mcp.PendingSignIn) -> None:
            if pending.user != caller.user:
                raise Conflict(REFUSED)

        return (await self._finish(key, Returned.at(url), check))[1]

    async def _finish(
        self, key: str, returned: Returned, check: Callable[[mcp.PendingSignIn], None]
    ) -> tuple[Caller, LookedAt]:
        """Finish a sign-in; if an administrator began it, list the server's tools, or store the problem."""
        record, pending = await self._consume(key, returned.state, check)
        tenant, server_id = key.split(".")[:2]
        caller = Caller(tenant, pending.user)
        try:
            await self._granted(key, record, pending, returned)
        except (Conflict, Unavailable) as error:
            if pending.lists:
                await self.servers.failed(tenant, server_id, "sign_in", error.public)
            raise
        server = await self.servers.get(caller, server_id)
        return caller, await self.servers.try_look(caller, server) if pending.lists else LookedAt(server)

    async def _granted(
        self, key: str, record: Record, pending: mcp.PendingSignIn, returned: Returned
    ) -> None:
        tokens, (tenant, server_id) = self._tokens(key), key.split(".")[:2]
        if returned.error is not None or returned.code is None:
            raise Conflict(f"the authorization server refused the sign-in at server {server_id!r}")
        kept = tokens.unsealed(mcp.PendingSecrets, key, pending.sealed)
        if kept is None:
            raise Conflict(REFUSED)
        check_issuer(kept.authorization, returned.issuer)
        token = _known_part((await self._asked(tenant, exchange(kept, returned.code))).token)
        access = mcp.Access(authorization=kept.authorization, token=token)
        signed_in = tokens.signed_in(key, pending.user, access)

        def changed(current: Record) -> Changes:
            # A token is for one server at one address.
            if current.place != record.place:
                raise Conflict(f"server {server_id!r} was changed meanwhile: sign in again")
            return {"signed_in": signed_in, "needs_sign_in": False}

        await tokens.update(key, changed)

    async def forget(self, caller: Caller, server_id: str, *, own: bool) -> None:
        """Delete the tokens of the tenant, or of the caller if each user signs in; `own` as in `begin`."""
        key = self._key(caller, await self._server(caller, server_id, own))

        def changed(record: Record) -> Changes:
            if record.signed_in is None and record.pending is None:
                raise NotFound("sign-in", server_id)
            needs = record.needs_sign_in or record.signed_in is not None
            return {"signed_in": None, "pending": None, "needs_sign_in": needs}

        await self._tokens(key).update(key, changed)

    async def own(self, caller: Caller) -> list[mcp.McpServer]:
        """Return the servers at which each user signs in, with the sign-ins of the caller."""
        found = [server for server in await self.servers.list(caller) if server.sign_in == "user"]
        return [await self.servers.seen_by(caller, server) for server in found]

    async def _server(self, caller: Caller, server_id: str, own: bool) -> mcp.McpServer:
        server = await self.servers.get(caller, server_id)
        if own and server.sign_in == "tenant":
            raise Conflict(f"at server {server_id!r}, an administrator signs in for all")
        return server

    def _tokens(self, key: str) -> Tokens[mcp.McpServer] | Tokens[mcp.McpAccount]:
        access = self.servers.access
        return access.users if key.count(".") > 1 else access.tenants

    def _key(self, caller: Caller, server: mcp.McpServer) -> str:
        """Return the key of the record with a caller's sign-in: of the server, or of the caller's account."""
        if server.sign_in == "tenant":
            return f"{caller.tenant}.{server.id}"
        return mcp.account_key(caller.tenant, server.id, caller.user)

    def _known(self, tenant: str, server: mcp.McpServer) -> mcp.OAuthClient | None:
        """Return the client of the last sign-in: of any user, if each user signs in."""
        key, tokens = f"{tenant}.{server.id}", self.servers.access.tenants
        if server.client is not None:
            return tokens.unsealed(mcp.OAuthClient, key, server.client)
        access = server.signed_in and tokens.unsealed(mcp.Access, key, server.signed_in.sealed)
        return access and access.authorization.client

    async def _share(self, tenant: str, server: mcp.McpServer, client: mcp.OAuthClient) -> None:
        """Store the client of a user's sign-in for the sign-ins of other users."""
        if client == self._known(tenant, server):
            return
        key, tokens = f"{tenant}.{server.id}", self.servers.access.tenants
        sealed = tokens.sealed(key, client)

        def changed(current: Record) -> Changes:
            # The secret of a client must not reach another authorization server.
            return {"client": sealed} if current.place == server.place else {}

        await tokens.update(key, changed)

    async def _asked(self, tenant: str, request: DiscoverSignIn | RequestToken) -> FileReply:
        reply = await self.servers.ask_runner(tenant, request)
        if reply.error is not None:
            raise Conflict(reply.error)
        return reply

    async def _consume(
        self, key: str, state: str, check: Callable[[mcp.PendingSignIn], None]
    ) -> tuple[Record, mcp.PendingSignIn]:
        """Return the record and the sign-in of a state, and invalidate the state unless `check` raises."""
        proof = _digest(state.rpartition(".")[2])
        taken: list[mcp.PendingSignIn] = []

        def changed(record: Record) -> Changes:
            pending = record.pending
            known = pending is not None and hmac.compare_digest(pending.state, proof)
            if pending is None or not known or pending.expires_at < self.clock.now():
                raise SignInEnded(REFUSED)
            check(pending)
            taken[:] = [pending]
            return {"pending": None}

        try:
            record = await self._tokens(key).update(key, changed)
        except (NotFound, BadInput) as error:
            raise SignInEnded(REFUSED) from error
        return record, taken[0]


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


def exchange(kept: mcp.PendingSecrets, code: str) -> RequestToken:
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
