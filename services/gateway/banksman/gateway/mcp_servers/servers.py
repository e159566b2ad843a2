"""The servers of the Model Context Protocol whose tools a tenant's models may call.

An administrator configures a server, reads its tools, and approves them. A tool that the server changes
afterwards is not offered until an administrator approves it again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import checked_reply
from banksman.bus.mcp_access import AccessMissing, Changes, McpAccess
from banksman.bus.names import MCP
from banksman.bus.secrets import SecretBox, SecretUnusable, TenantSecrets, sealed_transport
from banksman.bus.storage.kv import Bucket, Entry
from banksman.contracts import mcp, subjects
from banksman.contracts.errors import BadInput, BanksmanError, Conflict, NotFound, Unavailable
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.registry import OfferedTools, OfferTools
from banksman.contracts.runner_requests import FileReply, FindMcpTools, GetMcpPrompt, McpRequest
from banksman.gateway.mcp_servers.configuration import (
    McpServerChange,
    NewMcpServer,
    given_transport,
    replaced,
)
from banksman.gateway.operation.caller import Caller
from banksman.runs.ports import Clock
from banksman.runs.runners.placement import Placements

logger = logging.getLogger(__name__)

MAX_SERVERS = 20
"""Maximum servers of one tenant."""
MAX_PROBLEM_CHARS = 1_000
OFFER_TIMEOUT_S = 30.0
"""Seconds within which an agent checks the schemas of all tools of a server."""

_WORKS: Final = {"needs_sign_in": False, "problem": None, "problem_code": None}


@dataclass(frozen=True, slots=True)
class LookedAt:
    server: mcp.McpServer
    refused: tuple[mcp.RefusedTool, ...] = ()
    """Tools that cannot be called, and approved tools that cannot be offered."""

    @property
    def changes_digest(self) -> str | None:
        digests = "".join(tool.digest for tool in self.server.changes)
        return hashlib.sha256(digests.encode()).hexdigest() if digests else None


class ConfiguredServers:
    """The configured servers. Every method raises `Unavailable` if a service does not respond."""

    def __init__(self, bus: Bus, placements: Placements, clock: Clock, box: SecretBox) -> None:
        self._bus = bus
        self._bucket = Bucket(bus, MCP, mcp.McpServer)
        self._box = box
        self._secrets = TenantSecrets(bus, box)
        self._placements = placements
        self._clock = clock
        self.access = McpAccess(bus, box, clock.now)

    async def list(self, caller: Caller) -> list[mcp.McpServer]:
        found = [entry.value async for entry in self._bucket.entries(caller.tenant)]
        return sorted(found, key=lambda server: server.id)

    async def get(self, caller: Caller, server_id: str) -> mcp.McpServer:
        return (await self.entry(caller.tenant, server_id)).value

    async def seen_by(self, caller: Caller, server: mcp.McpServer) -> mcp.McpServer:
        """Return a server with the caller's own sign-in, if each user signs in there."""
        if server.sign_in == "tenant":
            return server
        key = f"{caller.tenant}.{server.id}"
        account = await self.access.account(Entry(key, server, 0), caller.user)
        own = (None, True) if account is None else (account.value.signed_in, account.value.needs_sign_in)
        return server.model_copy(update=dict(zip(("signed_in", "needs_sign_in"), own, strict=True)))

    async def create(self, caller: Caller, asked: NewMcpServer) -> LookedAt:
        """List the tools of a new server, which wait for approval; raise `Conflict` if the id is taken."""
        tenant, server_id = caller.tenant, asked.id
        if len(await self._bucket.keys(tenant)) >= MAX_SERVERS:
            raise Conflict(f"the tenant has {MAX_SERVERS} servers; delete some first")
        server = mcp.McpServer(
            id=server_id,
            transport=sealed_transport(tenant, server_id, given_transport(asked), self._box),
            **asked.treatment,
            created_at=self._clock.now(),
            created_by=caller.user,
        )
        if await self._bucket.create(f"{tenant}.{server_id}", server) is None:
            raise Conflict(f"server {server_id!r} exists already")
        return await self.try_look(caller, server)

    async def replace(self, caller: Caller, server_id: str, asked: McpServerChange) -> LookedAt:
        """Replace the configuration; raises as `replaced`. The same address or program keeps approvals."""
        tenant = caller.tenant
        given = sealed_transport(tenant, server_id, given_transport(asked), self._box)

        server = await self.update(tenant, server_id, lambda server: replaced(server, asked, given))
        await self._forget_users(tenant, server_id, server.place if server.sign_in == "user" else None)
        return await self.try_look(caller, server)

    async def try_look(self, caller: Caller, server: mcp.McpServer) -> LookedAt:
        """List the tools of a stored server; return `Unavailable` as its problem instead of raising it."""
        try:
            return await self.look(caller, server.id)
        except Unavailable as error:
            return LookedAt(
                server.model_copy(update={"problem": error.public, "problem_code": "unavailable"})
            )

    async def look(self, caller: Caller, server_id: str) -> LookedAt:
        """List the tools of a server, and withdraw those that it has changed or removed.

        A server at which each user signs in lists them to the caller's account.
        """
        tenant = caller.tenant
        entry = await self.entry(tenant, server_id)
        try:
            reply = await self._at_server(caller, entry, FindMcpTools)
        except SecretUnusable as error:
            return LookedAt(await self.failed(tenant, server_id, "secret", str(error)))
        except AccessMissing as error:
            return LookedAt(await self.failed(tenant, server_id, "sign_in", str(error)))
        if reply.error is not None:
            needs = reply.needs_sign_in
            if needs and entry.value.sign_in == "user":
                account = await self.access.account(entry, caller.user)
                if account is not None:
                    await self.access.users.update(account.key, lambda _: {"needs_sign_in": True})
            return LookedAt(await self.failed(tenant, server_id, "server", reply.error, needs_sign_in=needs))
        found, now = reply.tools, self._clock.now()

        def changed(server: mcp.McpServer) -> Changes:
            approved = {(tool.name, tool.digest) for tool in server.tools}
            same = tuple(tool for tool in found if (tool.name, tool.digest) in approved)
            others = tuple(tool for tool in found if (tool.name, tool.digest) not in approved)
            before = {tool.name: tool for tool in (*server.replaced, *server.tools)}
            replaced = tuple(before[tool.name] for tool in others if tool.name in before)
            seen = {"tools": same, "changes": others, "replaced": replaced, "found_at": now}
            return {**_WORKS, **seen, "prompts": reply.prompts}

        server = await self.update(tenant, server_id, changed)
        return LookedAt(server, refused=(*reply.refused_tools, *await self._offer(tenant, server)))

    async def failed(
        self, tenant: str, server_id: str, code: mcp.McpProblem, problem: str, *, needs_sign_in: bool = False
    ) -> mcp.McpServer:
        def changed(server: mcp.McpServer) -> Changes:
            needs = server.needs_sign_in or needs_sign_in
            stored = {"problem": problem[:MAX_PROBLEM_CHARS], "problem_code": code}
            return {**stored, "needs_sign_in": needs}

        return await self.update(tenant, server_id, changed)

    async def approve(self, caller: Caller, server_id: str, digest: str) -> LookedAt:
        """Offer the changes that an administrator has seen; raise `Conflict` if they have another digest."""

        def changed(server: mcp.McpServer) -> Changes:
            if LookedAt(server).changes_digest != digest:
                raise Conflict(f"the changes of server {server_id!r} differ from the ones that were shown")
            tools = {tool.name: tool for tool in (*server.tools, *server.changes)}
            return {"tools": tuple(tools.values()), "changes": (), "replaced": ()}

        server = await self.update(caller.tenant, server_id, changed)
        return LookedAt(server, refused=await self._offer(caller.tenant, server))

    async def delete(self, caller: Caller, server_id: str) -> None:
        entry = await self.entry(caller.tenant, server_id)
        # Withdrawn before the entry is deleted, so that a repeat after a failure finds the server again.
        await self._offer(caller.tenant, entry.value.model_copy(update={"tools": ()}))
        await self._forget_users(caller.tenant, server_id)
        await self._bucket.delete(entry.key)

    async def forget_user(self, tenant: str, user: str) -> None:
        """Delete what a user got by signing in at the servers of a tenant."""
        accounts = self.access.users.bucket
        async for entry in accounts.entries(tenant):
            if entry.value.user == user:
                await accounts.delete(entry.key)

    async def _forget_users(self, tenant: str, server_id: str, place: str | None = None) -> None:
        """Delete what users got by signing in, except at `place`."""
        accounts = self.access.users.bucket
        async for entry in accounts.entries(f"{tenant}.{server_id}"):
            if entry.value.place != place:
                await accounts.delete(entry.key)

    async def prompt(self, caller: Caller, server_id: str, name: str, arguments: dict[str, str]) -> str:
        """Return the text of a listed prompt; raise `Conflict` with the reason why there is none."""
        entry = await self.entry(caller.tenant, server_id)
        listed = next((one for one in entry.value.prompts if one.name == name), None)
        if listed is None:
            raise NotFound("prompt", name)
        _check_arguments(listed, arguments)
        try:
            reply = await self._at_server(
                caller, entry, partial(GetMcpPrompt, name=name, arguments=arguments)
            )
        except (SecretUnusable, AccessMissing) as error:
            raise Conflict(str(error)) from error
        if reply.prompt is None:
            raise Conflict(reply.error or "the server returned no text")
        return reply.prompt

    async def _at_server(
        self, caller: Caller, entry: Entry[mcp.McpServer], request: Callable[..., FindMcpTools | GetMcpPrompt]
    ) -> FileReply:
        # Send the request even if the server refused an earlier one: a user may have set another token.
        tenant, server = caller.tenant, entry.value.model_copy(update={"needs_sign_in": False})
        resolved = await self._secrets.resolved(tenant, server.id, server.transport)
        allowed = Entry(entry.key, server, entry.revision)
        request_token = partial(self.ask_runner, tenant)
        transport, _ = await self.access.authorized(allowed, caller.user, resolved.transport, request_token)
        return await self.ask_runner(tenant, request(transport=transport, hidden=resolved.hidden))

    async def ask_runner(self, tenant: str, request: McpRequest) -> FileReply:
        """Send a request to a runner, in an empty workspace that is removed afterwards."""
        workspace = new_id("mcp-")
        try:
            return await self._placements.files(tenant, workspace, request)
        finally:
            try:
                await self._placements.forget(tenant, workspace)
            except BanksmanError as error:
                logger.warning("%s: an empty workspace was not removed: %s", workspace, error)

    async def entry(self, tenant: str, server_id: str) -> Entry[mcp.McpServer]:
        entry = await self._bucket.get(f"{tenant}.{check_token(server_id, 'server_id')}")
        if entry is None:
            raise NotFound("server", server_id)
        return entry

    async def update(
        self, tenant: str, server_id: str, change: Callable[[mcp.McpServer], Changes]
    ) -> mcp.McpServer:
        """Change fields of the current entry of a server; raises the errors of `change`."""
        return await self.access.tenants.update(f"{tenant}.{check_token(server_id, 'server_id')}", change)

    async def _offer(self, tenant: str, server: mcp.McpServer) -> tuple[mcp.RefusedTool, ...]:
        definitions = tuple(mcp.definition_of(server, tool) for tool in server.tools)
        request = OfferTools(server=server.id, definitions=definitions).model_dump_json().encode()
        subject = subjects.tenant_registry("tool", "offer", tenant)
        reply = checked_reply(await self._bus.request(subject, request, OFFER_TIMEOUT_S))
        try:
            return OfferedTools.model_validate_json(reply).refused
        except ValidationError as error:
            raise Unavailable("an agent sent an unreadable reply to an offer of tools") from error


def _check_arguments(prompt: mcp.ServedPrompt, arguments: dict[str, str]) -> None:
    known = {argument.name for argument in prompt.arguments}
    for name in arguments:
        if name not in known:
            raise BadInput(f"arguments.{name}", None, f"one of {sorted(known)}")
    for argument in prompt.arguments:
        if argument.required and not arguments.get(argument.name):
            raise BadInput(f"arguments.{argument.name}", None, "a value")
