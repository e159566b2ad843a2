"""The configuration with which a runner reaches an MCP server, and the access tokens in it.

The process that sends a call reads the configuration, and decrypts and renews the tokens. Only the request to
the runner that executes the call contains them: no event, log line or model request does.

A token that expires soon is renewed before the call, by one process at a time: authorization servers that
replace refresh tokens revoke all tokens of a user if one of them is used twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.names import MCP
from banksman.bus.secrets import SecretBox, TenantSecrets
from banksman.bus.storage.kv import Bucket, Entry
from banksman.contracts import mcp, subjects
from banksman.contracts.calls import CallRequest, FileReply
from banksman.contracts.errors import Fault

RENEWAL: Final = timedelta(seconds=20)
"""Time after which another process may renew a token; a token request has ended by then."""
POLL_EVERY_S: Final = 0.2
"""Seconds between two reads of an expired token that another process is renewing."""

SendToRunner = Callable[[mcp.RequestToken], Awaitable[FileReply]]
"""Sends a request to a runner, which connects to addresses that tenants chose. May raise `Unavailable`."""
M = TypeVar("M", bound=BaseModel)

TOKEN_TIMEOUT_S = 15.0
"""Seconds to wait for a runner's reply to a token request."""


class AccessMissing(Fault):
    """A server cannot be reached without a sign-in."""


def needs_sign_in(server_id: str) -> AccessMissing:
    return AccessMissing(f"the server {server_id!r} needs a sign-in by an administrator")


class McpAccess:
    """Adds tokens to the configuration of servers."""

    def __init__(self, bus: Bus, box: SecretBox, now: Callable[[], datetime]) -> None:
        self._servers = Bucket(bus, MCP, mcp.McpServer)
        self._box = box
        self._now = now

    async def authorized(
        self, tenant: str, entry: Entry[mcp.McpServer], transport: mcp.McpTransport, send: SendToRunner
    ) -> mcp.McpTransport:
        """Return the transport of a server with its access token, which is renewed if it expires soon.

        Args:
            transport: The configured transport; returned unchanged for a server without a sign-in.
            send: Sends the request for a token to a runner.

        Raises:
            AccessMissing: An administrator must sign in first, or the token could not be renewed.
        """
        begun, usable = entry.value, False
        while True:
            server, signed_in, now = entry.value, entry.value.signed_in, self._now()
            if server.transport != begun.transport:
                # The token may be for the new address, and the call would send it to the old one.
                raise AccessMissing(f"the server {server.id!r} was changed meanwhile")
            if server.needs_sign_in:
                raise needs_sign_in(server.id)
            if signed_in is None or not isinstance(transport, mcp.HttpServer):
                return transport
            renewing = signed_in.is_renewing(now)
            if usable or signed_in.is_fresh(now) or (renewing and signed_in.is_valid(now)):
                return with_token(transport, self.opened(tenant, server, signed_in).token.access_token)
            if renewing:
                await asyncio.sleep(POLL_EVERY_S)
                entry = await self._read(entry.key, server.id)
            else:
                entry, usable = await self._renewed(tenant, entry, signed_in, send)

    def sealed(self, tenant: str, server_id: str, secrets: BaseModel) -> str:
        """Return the secrets of a sign-in, encrypted for storage."""
        return self._box.seal(secrets.model_dump_json(), _name(tenant, server_id))

    def opened(self, tenant: str, server: mcp.McpServer, signed_in: mcp.SignedIn) -> mcp.Access:
        """Return the tokens of a server; raise `AccessMissing` if another signing key encrypted them."""
        return self.unsealed(mcp.Access, tenant, server.id, signed_in.sealed)

    def unsealed(self, model: type[M], tenant: str, server_id: str, sealed: str) -> M:
        """Return the decrypted secrets of a sign-in, or raise as `opened`."""
        text = self._box.open(sealed, _name(tenant, server_id))
        if text is None:
            raise needs_sign_in(server_id)
        return model.model_validate_json(text)

    def signed_in(self, tenant: str, server_id: str, user: str, access: mcp.Access) -> mcp.SignedIn:
        now, expires_in_s = self._now(), access.token.expires_in_s
        return mcp.SignedIn(
            user=user,
            at=now,
            expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
            sealed=self.sealed(tenant, server_id, access),
        )

    async def _renewed(
        self, tenant: str, entry: Entry[mcp.McpServer], signed_in: mcp.SignedIn, send: SendToRunner
    ) -> tuple[Entry[mcp.McpServer], bool]:
        """Renew a token unless another process does.

        Returns:
            The server as stored afterwards, and whether to use its token without another renewal. This is
            True even for a new token that is valid for less than a minute, and for an unexpired token that
            cannot be renewed.
        """
        access = self.opened(tenant, entry.value, signed_in)
        if access.token.refresh_token is None:
            return await self._ended(entry, signed_in)
        claim = signed_in.model_copy(update={"renewing_until": self._now() + RENEWAL})
        server = _with(entry.value, claim)
        revision = await self._servers.update(entry.key, server, entry.revision)
        if revision is None:
            return await self._read(entry.key, server.id), False
        claimed = Entry(entry.key, server, revision)
        # If no reply arrives, the claim stays until it expires: the runner may still send the request.
        reply = await send(_refresh(access))
        if reply.token is not None:
            renewed = self.signed_in(tenant, server.id, signed_in.user, _renewal(access, reply.token))
            renewed = renewed.model_copy(update={"at": signed_in.at})
            return await self._stored(claimed, _with(server, renewed)), True
        if reply.refused:
            return await self._ended(claimed, signed_in)
        released = await self._stored(claimed, _with(server, signed_in))
        if not signed_in.is_valid(self._now()):
            raise AccessMissing(f"the token of server {server.id!r} could not be renewed: {reply.error}")
        return released, True

    async def _ended(
        self, entry: Entry[mcp.McpServer], signed_in: mcp.SignedIn
    ) -> tuple[Entry[mcp.McpServer], bool]:
        """Return a server whose token cannot be renewed, and whether to use the token until it expires."""
        if signed_in.is_valid(self._now()):
            return entry, True
        signed_out = entry.value.model_copy(update={"signed_in": None, "needs_sign_in": True})
        return await self._stored(entry, signed_out), False

    async def _stored(self, entry: Entry[mcp.McpServer], server: mcp.McpServer) -> Entry[mcp.McpServer]:
        """Store a change of access, and merge it with concurrent changes by an administrator."""
        while True:
            revision = await self._servers.update(entry.key, server, entry.revision)
            if revision is not None:
                return Entry(entry.key, server, revision)
            now = await self._read(entry.key, server.id)
            if _sealed(now.value) != _sealed(entry.value):
                # An administrator signed in or out meanwhile: that change wins.
                return now
            access = {"signed_in": server.signed_in, "needs_sign_in": server.needs_sign_in}
            entry, server = now, now.value.model_copy(update=access)

    async def _read(self, key: str, server_id: str) -> Entry[mcp.McpServer]:
        entry = await self._servers.get(key)
        if entry is None:
            raise AccessMissing(f"the server {server_id!r} was deleted")
        return entry


def with_token(server: mcp.HttpServer, token: str) -> mcp.HttpServer:
    """Return a server with the header `Authorization: Bearer {token}`, which replaces a configured one."""
    others = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
    return server.with_values({**others, "Authorization": f"Bearer {token}"})


def _sealed(server: mcp.McpServer) -> str | None:
    return server.signed_in and server.signed_in.sealed


def _with(server: mcp.McpServer, signed_in: mcp.SignedIn) -> mcp.McpServer:
    return server.model_copy(update={"signed_in": signed_in})


def _refresh(access: mcp.Access) -> mcp.RequestToken:
    authorization = access.authorization
    return mcp.RequestToken(
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


def _name(tenant: str, server_id: str) -> str:
    # Header names have no colon, so the sealed value of a header cannot be opened under this name.
    return f"{tenant}.{server_id}.:sign-in"


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
            AccessMissing: An administrator must sign in at the server, or its token could not be renewed.
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

        async def send(wanted: mcp.RequestToken) -> FileReply:
            subject = subjects.files(runner, request.tenant, request.conversation_id)
            reply = await self._bus.request(subject, wanted.model_dump_json().encode(), TOKEN_TIMEOUT_S)
            return FileReply.model_validate_json(reply)

        transport = await self._access.authorized(request.tenant, entry, resolved.transport, send)
        target = mcp.McpTarget(
            transport=transport, tool=tool.name, digest=tool.digest, hidden=resolved.hidden
        )
        return request.model_copy(update={"mcp": target})
