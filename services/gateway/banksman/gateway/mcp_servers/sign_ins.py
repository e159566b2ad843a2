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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Self, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from banksman.bus.mcp_access import Tokens
from banksman.contracts import mcp
from banksman.contracts.calls import FileReply
from banksman.contracts.errors import BadInput, Conflict, NotFound, Unavailable
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.operation.caller import Caller
from banksman.runs.ports import Clock

CALLBACK: Final = "/context/mcp-sign-in"
"""Where authorization servers redirect users. Not below `mcp-servers`, where it could equal a server's id."""
SIGN_IN_TIME: Final = timedelta(minutes=10)
REFUSED: Final = "this sign-in has ended or was not begun here: begin it again"

Changes = Mapping[str, object]
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
        """Begin a sign-in of an administrator, which replaces an earlier one that has not been finished.

        Without a `client` that the authorization server knows, it uses the client of the last sign-in, or
        registers one. Raises `Conflict` if the server is a program, or offers no sign-in.
        """
        server = await self.servers.get(caller, server_id)
        return await self._begin(caller, server, redirect_uri, client, lists=True)

    async def begin_own(self, caller: Caller, server_id: str, redirect_uri: str) -> Begun:
        """Begin a sign-in of a user for the user's own runs.

        Raises `Conflict` as `begin`, or if an administrator signs in at the server for the whole tenant.
        """
        server = await self._of_users(caller, server_id)
        return await self._begin(caller, server, redirect_uri, None, lists=False)

    async def _begin(
        self,
        caller: Caller,
        server: mcp.McpServer,
        redirect_uri: str,
        client: mcp.OAuthClient | None,
        *,
        lists: bool,
    ) -> Begun:
        tenant, changed_meanwhile = caller.tenant, Conflict(f"server {server.id!r} was changed meanwhile")
        if not isinstance(server.transport, mcp.HttpServer):
            raise Conflict(f"server {server.id!r} is a program, which has no sign-in")
        known = client or self._known(tenant, server)
        request = mcp.DiscoverSignIn(url=server.transport.url, redirect_uri=redirect_uri, client=known)
        found = _known_part((await self._asked(tenant, request)).authorization)
        key = self._key(caller, server)
        if server.sign_in == "user":
            await self._share(key, caller, server, found.client)
        proof, verifier, browser = (secrets.token_urlsafe(size) for size in (32, 64, 32))
        kept = mcp.PendingSecrets(authorization=found, redirect_uri=redirect_uri, code_verifier=verifier)
        pending = mcp.PendingSignIn(
            state=_digest(proof),
            user=caller.user,
            browser=_digest(browser),
            expires_at=self.clock.now() + SIGN_IN_TIME,
            sealed=self._tokens(key).sealed(key, kept),
            lists=lists,
        )

        def changed(current: mcp.SignInState) -> Changes:
            if current.place != server.place:
                raise changed_meanwhile
            return {"pending": pending}

        await self._tokens(key).update(key, changed)
        state = f"{key}.{proof}"
        return Begun(authorization_url(found, redirect_uri, state, verifier), state, browser)

    async def finish_in_browser(self, returned: Returned, browser: str) -> tuple[Caller, str]:
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
        return caller, looked_at.server.id

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
        self, key: str, record: mcp.SignInState, pending: mcp.PendingSignIn, returned: Returned
    ) -> None:
        tokens, (tenant, server_id) = self._tokens(key), key.split(".")[:2]
        changed_meanwhile = Conflict(f"server {server_id!r} was changed meanwhile: sign in again")
        if returned.error is not None or returned.code is None:
            raise Conflict(f"the authorization server refused the sign-in at server {server_id!r}")
        kept = tokens.unsealed(mcp.PendingSecrets, key, pending.sealed)
        if kept is None:
            raise Conflict(REFUSED)
        check_issuer(kept.authorization, returned.issuer)
        token = _known_part((await self._asked(tenant, exchange(kept, returned.code))).token)
        access = mcp.Access(authorization=kept.authorization, token=token)
        signed_in = tokens.signed_in(key, pending.user, access)

        def changed(current: mcp.SignInState) -> Changes:
            # A token is for one server at one address.
            if current.place != record.place:
                raise changed_meanwhile
            return {"signed_in": signed_in, "needs_sign_in": False}

        try:
            await tokens.update(key, changed)
        except NotFound as error:
            raise changed_meanwhile from error

    async def forget(self, caller: Caller, server_id: str) -> None:
        """Delete the tokens of a tenant, or an administrator's own and the client of users' sign-ins."""
        server = await self.servers.get(caller, server_id)
        if server.sign_in == "user":
            await self._tenant_tokens.update(_server_key(caller, server), lambda _: {"client": None})
            return await self.forget_own(caller, server_id)

        def changed(server: mcp.SignInState) -> Changes:
            if server.signed_in is None and server.pending is None:
                raise NotFound("sign-in", server_id)
            needs = server.needs_sign_in or server.signed_in is not None
            return {"signed_in": None, "pending": None, "needs_sign_in": needs}

        await self._tenant_tokens.update(_server_key(caller, server), changed)

    async def forget_own(self, caller: Caller, server_id: str) -> None:
        """Delete the tokens of a user; raise `NotFound` if the user has none."""
        key = self._key(caller, await self._of_users(caller, server_id))
        accounts = self.servers.access.users.bucket
        if await accounts.get(key) is None:
            raise NotFound("sign-in", server_id)
        await accounts.delete(key)

    async def own(self, caller: Caller) -> list[mcp.McpServer]:
        """Return the servers at which each user signs in, with the sign-ins of the caller."""
        found = [server for server in await self.servers.list(caller) if server.sign_in == "user"]
        return [await self.servers.seen_by(caller, server) for server in found]

    async def _of_users(self, caller: Caller, server_id: str) -> mcp.McpServer:
        server = await self.servers.get(caller, server_id)
        if server.sign_in == "tenant":
            raise Conflict(f"at server {server_id!r}, an administrator signs in for all")
        return server

    @property
    def _tenant_tokens(self) -> Tokens[mcp.McpServer]:
        return self.servers.access.tenants

    def _tokens(self, key: str) -> Tokens[mcp.McpServer] | Tokens[mcp.McpAccount]:
        return self.servers.access.users if key.count(".") > 1 else self._tenant_tokens

    def _key(self, caller: Caller, server: mcp.McpServer) -> str:
        """Return the key of the record with a caller's sign-in: of the server, or of the caller's account."""
        if server.sign_in == "tenant":
            return _server_key(caller, server)
        return mcp.account_key(caller.tenant, server.id, caller.user)

    def _known(self, tenant: str, server: mcp.McpServer) -> mcp.OAuthClient | None:
        """Return the client of the last sign-in: of any user, if each user signs in."""
        key, tokens = f"{tenant}.{server.id}", self._tenant_tokens
        if server.client is not None:
            return tokens.unsealed(mcp.OAuthClient, key, server.client)
        if server.signed_in is None:
            return None
        access = tokens.unsealed(mcp.Access, key, server.signed_in.sealed)
        return access and access.authorization.client

    async def _share(self, key: str, caller: Caller, server: mcp.McpServer, client: mcp.OAuthClient) -> None:
        """Store the client of a user's sign-in for all users, and the user's account if there is none."""
        if client != self._known(caller.tenant, server):
            server_key = _server_key(caller, server)
            sealed = self._tenant_tokens.sealed(server_key, client)

            def changed(current: mcp.SignInState) -> Changes:
                # The secret of a client must not reach another authorization server.
                return {"client": sealed} if current.place == server.place else {}

            await self._tenant_tokens.update(server_key, changed)
        accounts = self.servers.access.users.bucket
        account = mcp.new_account(server, caller.user)
        found = await accounts.get(key)
        if found is not None and found.value.place != account.place:
            await accounts.delete(key, revision=found.revision)
        await accounts.create(key, account)

    async def _asked(self, tenant: str, request: mcp.DiscoverSignIn | mcp.RequestToken) -> FileReply:
        reply = await self.servers.ask_runner(tenant, request)
        if reply.error is not None:
            raise Conflict(reply.error)
        return reply

    async def _consume(
        self, key: str, state: str, check: Callable[[mcp.PendingSignIn], None]
    ) -> tuple[mcp.SignInState, mcp.PendingSignIn]:
        """Return the record and the sign-in of a state, and invalidate the state unless `check` raises."""
        proof = _digest(state.rpartition(".")[2])
        taken: list[mcp.PendingSignIn] = []

        def changed(record: mcp.SignInState) -> Changes:
            pending = record.pending
            if pending is None or not hmac.compare_digest(pending.state, proof):
                raise SignInEnded(REFUSED)
            if pending.expires_at < self.clock.now():
                raise SignInEnded(REFUSED)
            check(pending)
            taken[:] = [pending]
            return {"pending": None}

        try:
            record = await self._tokens(key).update(key, changed)
        except (NotFound, BadInput) as error:
            raise SignInEnded(REFUSED) from error
        return record, taken[0]


def _server_key(caller: Caller, server: mcp.McpServer) -> str:
    return f"{caller.tenant}.{server.id}"


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
