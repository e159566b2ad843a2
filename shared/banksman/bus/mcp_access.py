"""The configuration with which a runner reaches an MCP server, and the access tokens in it.

The process that sends a call reads the configuration, and decrypts and renews the tokens. Only the request to
the runner that executes the call contains them: no event, log line or model request does.

A token that expires soon is renewed before the call, by one process at a time: authorization servers that
replace refresh tokens revoke all tokens of a user if one of them is used twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.names import MCP, MCP_ACCOUNTS
from banksman.bus.secrets import SecretBox, TenantSecrets
from banksman.bus.storage.kv import Bucket, Entry
from banksman.contracts import mcp, subjects
from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import Fault, NotFound
from banksman.contracts.runner_requests import FileReply, RequestToken

RENEWAL: Final = timedelta(seconds=20)
"""Time after which another process may renew a token; a token request has ended by then."""
POLL_EVERY_S: Final = 0.2
"""Seconds between two reads of an expired token that another process is renewing."""

SendToRunner = Callable[[RequestToken], Awaitable[FileReply]]
"""Sends a request to a runner, which connects to addresses that tenants chose. May raise `Unavailable`."""
Changes = Mapping[str, object]
M = TypeVar("M", bound=BaseModel)
S = TypeVar("S", mcp.McpServer, mcp.McpAccount)

TOKEN_TIMEOUT_S = 15.0
"""Seconds to wait for a runner's reply to a token request."""


class AccessMissing(Fault):
    """A server cannot be reached without a sign-in."""


class UserAccessMissing(AccessMissing):
    """The user for whom a run acts must sign in."""


def needs_sign_in(record: mcp.McpServer | mcp.McpAccount) -> AccessMissing:
    if isinstance(record, mcp.McpServer):
        return AccessMissing(f"the server {record.id!r} needs a sign-in by an administrator")
    place = f"under Settings on the page, or with `banksman mcp sign-in {record.server} --own`"
    text = f"the server {record.server!r} needs a sign-in by the user {record.user!r}: {place}"
    return UserAccessMissing(text)


class Tokens(Generic[S]):
    """The tokens in the records of one bucket: of servers, or of users' accounts at servers."""

    def __init__(self, bucket: Bucket[S], box: SecretBox, now: Callable[[], datetime]) -> None:
        self.bucket = bucket
        self._box = box
        self._now = now

    async def authorized(
        self, entry: Entry[S], transport: mcp.McpTransport, send: SendToRunner
    ) -> tuple[mcp.McpTransport, S]:
        """Return the transport of a server with its access token, which is renewed if it expires soon.

        Args:
            entry: The record whose access is used.
            transport: The configured transport; returned unchanged for a server without a sign-in.
            send: Sends the request for a token to a runner.

        Returns:
            The transport, and the record as it is stored now.

        Raises:
            AccessMissing: Someone must sign in first, or the token could not be renewed.
        """
        begun, usable = entry.value, False
        while True:
            record, signed_in, now = entry.value, entry.value.signed_in, self._now()
            if record.place != begun.place:
                # The token may be for the new address, and the call would send it to the old one.
                raise AccessMissing("the server was changed meanwhile")
            if record.needs_sign_in:
                raise needs_sign_in(record)
            if signed_in is None or not isinstance(transport, mcp.HttpServer):
                return transport, record
            renewing = signed_in.is_renewing(now)
            if usable or signed_in.is_fresh(now) or (renewing and signed_in.is_valid(now)):
                token = self.opened(entry, signed_in).token
                return with_token(transport, token.access_token), record
            if renewing:
                await asyncio.sleep(POLL_EVERY_S)
                entry = await self._read(entry.key)
            else:
                entry, usable = await self._renewed(entry, signed_in, send)

    async def update(self, key: str, change: Callable[[S], Changes]) -> S:
        """Change fields of the current record; raise the errors of `change`, or `NotFound`."""
        while True:
            entry = await self.bucket.get(key)
            if entry is None:
                raise NotFound("server", key.partition(".")[2])
            record = entry.value.model_copy(update=dict(change(entry.value)))
            if await self.bucket.update(key, record, entry.revision) is not None:
                return record

    def sealed(self, key: str, secrets: BaseModel) -> str:
        """Return the secrets of a sign-in, encrypted for storage in the record with this key."""
        return self._box.seal(secrets.model_dump_json(), _name(key))

    def opened(self, entry: Entry[S], signed_in: mcp.SignedIn) -> mcp.Access:
        """Return the tokens of a record; raise `AccessMissing` if another signing key encrypted them."""
        access = self.unsealed(mcp.Access, entry.key, signed_in.sealed)
        if access is None:
            raise needs_sign_in(entry.value)
        return access

    def unsealed(self, model: type[M], key: str, sealed: str) -> M | None:
        """Return the decrypted secrets of a sign-in; None if another signing key encrypted them."""
        text = self._box.open(sealed, _name(key))
        return None if text is None else model.model_validate_json(text)

    def signed_in(self, key: str, user: str, access: mcp.Access) -> mcp.SignedIn:
        now, expires_in_s = self._now(), access.token.expires_in_s
        return mcp.SignedIn(
            user=user,
            at=now,
            expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
            sealed=self.sealed(key, access),
        )

    async def _renewed(
        self, entry: Entry[S], signed_in: mcp.SignedIn, send: SendToRunner
    ) -> tuple[Entry[S], bool]:
        """Renew a token unless another process does.

        Returns:
            The record as stored afterwards, and whether to use its token without another renewal. This is
            True even for a new token that is valid for less than a minute, and for an unexpired token that
            cannot be renewed.
        """
        access = self.opened(entry, signed_in)
        if access.token.refresh_token is None:
            return await self._ended(entry, signed_in)
        claim = signed_in.model_copy(update={"renewing_until": self._now() + RENEWAL})
        record = _with(entry.value, claim)
        revision = await self.bucket.update(entry.key, record, entry.revision)
        if revision is None:
            return await self._read(entry.key), False
        claimed = Entry(entry.key, record, revision)
        # If no reply arrives, the claim stays until it expires: the runner may still send the request.
        reply = await send(_refresh(access))
        if reply.token is not None:
            renewed = self.signed_in(entry.key, signed_in.user, _renewal(access, reply.token))
            renewed = renewed.model_copy(update={"at": signed_in.at})
            return await self._stored(claimed, _with(record, renewed)), True
        if reply.refused:
            return await self._ended(claimed, signed_in)
        released = await self._stored(claimed, _with(record, signed_in))
        if not signed_in.is_valid(self._now()):
            raise AccessMissing(f"the token of the server could not be renewed: {reply.error}")
        return released, True

    async def _ended(self, entry: Entry[S], signed_in: mcp.SignedIn) -> tuple[Entry[S], bool]:
        """Return a record whose token cannot be renewed, and whether to use the token until it expires."""
        if signed_in.is_valid(self._now()):
            return entry, True
        signed_out = entry.value.model_copy(update={"signed_in": None, "needs_sign_in": True})
        return await self._stored(entry, signed_out), False

    async def _stored(self, entry: Entry[S], record: S) -> Entry[S]:
        """Store a change of access, and merge it with concurrent changes by an administrator."""
        while True:
            revision = await self.bucket.update(entry.key, record, entry.revision)
            if revision is not None:
                return Entry(entry.key, record, revision)
            now = await self._read(entry.key)
            if _sealed(now.value) != _sealed(entry.value):
                # Someone signed in or out meanwhile: that change wins.
                return now
            access = {"signed_in": record.signed_in, "needs_sign_in": record.needs_sign_in}
            entry, record = now, now.value.model_copy(update=access)

    async def _read(self, key: str) -> Entry[S]:
        entry = await self.bucket.get(key)
        if entry is None:
            raise AccessMissing("the server or the sign-in was deleted meanwhile")
        return entry


class McpAccess:
    """Adds the tokens of the tenant, or of the user for whom a call is made, to the address of a server."""

    def __init__(self, bus: Bus, box: SecretBox, now: Callable[[], datetime]) -> None:
        self.tenants = Tokens(Bucket(bus, MCP, mcp.McpServer), box, now)
        self.users = Tokens(Bucket(bus, MCP_ACCOUNTS, mcp.McpAccount), box, now)

    async def authorized(
        self, entry: Entry[mcp.McpServer], user: str, transport: mcp.McpTransport, send: SendToRunner
    ) -> tuple[mcp.McpTransport, str]:
        """Return what `Tokens.authorized` returns, and the account whose access it has, as in `McpTarget`.

        Args:
            user: Whose access a server gets that users sign in to; empty if unknown.
        """
        server = entry.value
        if server.sign_in == "tenant":
            return (await self.tenants.authorized(entry, transport, send))[0], ""
        account = await self.account(entry, user)
        if account is None:
            raise needs_sign_in(mcp.new_account(server, user))
        transport, used = await self.users.authorized(account, transport, send)
        return transport, f"{user} {used.signed_in and used.signed_in.at}"

    async def account(self, entry: Entry[mcp.McpServer], user: str) -> Entry[mcp.McpAccount] | None:
        """Return what a user got by signing in at a server; None if it is for another place."""
        tenant = entry.key.partition(".")[0]
        found = await self.users.bucket.get(mcp.account_key(tenant, entry.value.id, user)) if user else None
        return found if found and found.value.place == entry.value.place else None


def with_token(server: mcp.HttpServer, token: str) -> mcp.HttpServer:
    """Return a server with the header `Authorization: Bearer {token}`, which replaces a configured one."""
    others = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
    return server.with_values({**others, "Authorization": f"Bearer {token}"})


def _sealed(record: mcp.SignInState) -> str | None:
    return record.signed_in and record.signed_in.sealed


def _with(record: S, signed_in: mcp.SignedIn) -> S:
    return record.model_copy(update={"signed_in": signed_in})


def _refresh(access: mcp.Access) -> RequestToken:
    authorization = access.authorization
    return RequestToken(
        token_endpoint=authorization.token_endpoint,
        client=authorization.client,
        form={
            "grant_type": "refresh_token",
            "refresh_token": access.token.refresh_token or "",
            "resource": authorization.resource,
        },
    )


def _renewal(access: mcp.Access, token: mcp.AccessToken) -> mcp.Access:
    """Return renewed tokens. A reply without a refresh token keeps the old one (RFC 6749, section 6)."""
    kept = token.refresh_token or access.token.refresh_token
    return access.model_copy(update={"token": token.model_copy(update={"refresh_token": kept})})


def _name(key: str) -> str:
    # Header names have no colon, so the sealed value of a header cannot be opened under this name.
    return f"{key}.:sign-in"


class McpTargets:
    def __init__(self, bus: Bus, box: SecretBox, secrets: TenantSecrets, now: Callable[[], datetime]) -> None:
        self._bus = bus
        self._servers = Bucket(bus, MCP, mcp.McpServer)
        self._secrets = secrets
        self._access = McpAccess(bus, box, now)

    async def with_target(self, request: CallRequest, runner: str) -> CallRequest:
        """Return a request with the MCP target of its call; unchanged for a tool of no MCP server.

        A token that expires soon is renewed through the runner of the call. A tool that is no longer approved
        gets no target, and the runner refuses it as an unknown tool.

        Raises:
            SecretUnusable: A secret of the server is not set, or cannot be used.
            AccessMissing: An administrator or the user of the request must sign in, or the token could not be
                renewed.
        """
        name = request.call.name
        server_id = mcp.mcp_server_of(name)
        if server_id is None:
            return request
        entry = await self._servers.get(f"{request.tenant}.{server_id}")
        approved = () if entry is None else entry.value.tools
        tool = next((tool for tool in approved if mcp.offered_name(server_id, tool.name) == name), None)
        if entry is None or tool is None:
            return request
        resolved = await self._secrets.resolved(request.tenant, server_id, entry.value.transport)

        async def send(wanted: RequestToken) -> FileReply:
            subject = subjects.files(runner, request.tenant, request.conversation_id)
            reply = await self._bus.request(subject, wanted.model_dump_json().encode(), TOKEN_TIMEOUT_S)
            return FileReply.model_validate_json(reply)

        transport, account = await self._access.authorized(entry, request.user, resolved.transport, send)
        target = mcp.McpTarget(
            transport=transport, tool=tool.name, digest=tool.digest, hidden=resolved.hidden, account=account
        )
        return request.model_copy(update={"mcp": target})
