"""MCP (Model Context Protocol) servers whose tools a tenant's models may call, and OAuth access to them."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, StringConstraints

from banksman.contracts.ids import digest
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Timestamp

MAX_URL_CHARS: Final = 2_000
RENEW_BEFORE: Final = timedelta(minutes=1)
"""Remaining lifetime below which a token is renewed before a call."""

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=MAX_URL_CHARS)]
OAuthToken = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=16_000)]
"""An OAuth token or secret: visible ASCII characters, which are valid in headers."""
OAuthText = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]+$", max_length=2_000)]
"""An id, a scope or an issuer."""


class OAuthClient(Stored):
    """The registration of this platform at an authorization server."""

    client_id: OAuthText
    client_secret: OAuthToken | None = Field(default=None, repr=False)
    method: Literal["none", "client_secret_post", "client_secret_basic"] = "none"
    """How it authenticates at the token endpoint."""
    issuer: OAuthText | None = None
    """The authorization server that registered it; None for a client that an administrator configured."""
    redirect_uri: Url | None = None
    """The redirect URI that it was registered with; None for a client that an administrator configured."""


class Authorization(Stored):
    """The authorization server and the OAuth client of a sign-in."""

    issuer: OAuthText
    states_issuer: bool = False
    """Whether the authorization server adds its identity (`iss`) to the redirect (RFC 9207)."""
    authorization_endpoint: Url
    token_endpoint: Url
    resource: Url
    """The resource that the token is for (RFC 8707)."""
    scope: OAuthText | None = None
    client: OAuthClient


class AccessToken(Stored):
    """The tokens that a token endpoint granted."""

    access_token: OAuthToken = Field(repr=False)
    refresh_token: OAuthToken | None = Field(default=None, repr=False)
    expires_in_s: int | None = Field(default=None, ge=0, le=10**9)
    """None if the server does not state when it expires."""


class PendingSignIn(Stored):
    """A started sign-in: the user was sent to the authorization server. It completes once or expires."""

    state: str
    """SHA-256 of the random part of `state`."""
    user: str
    browser: str
    """SHA-256 of the cookie of the browser that started it."""
    expires_at: Timestamp
    sealed: str = Field(repr=False)
    """An encrypted `PendingSecrets`."""
    lists: bool = Field(default=True, exclude_if=lambda lists: lists)
    """Whether an administrator began it, so that the tools of the server are listed afterwards."""


class PendingSecrets(Stored):
    """The secrets for the exchange of the authorization code."""

    authorization: Authorization
    redirect_uri: Url
    code_verifier: str = Field(repr=False)


class SignedIn(Stored):
    """The access that a user granted."""

    user: str
    at: Timestamp
    expires_at: Timestamp | None = None
    """Expiry of the token; None if the server did not state it."""
    renewing_until: Timestamp | None = None
    """Until this time, only one process renews the token."""
    sealed: str = Field(repr=False)
    """An encrypted `Access`."""

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the token needs no renewal before a call."""
        return self.expires_at is None or now + RENEW_BEFORE < self.expires_at

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at is None or now < self.expires_at

    def is_renewing(self, now: datetime) -> bool:
        """Return whether a process renews the token now."""
        return self.renewing_until is not None and now < self.renewing_until


class Access(Stored):
    """The tokens of a server, and the authorization that renews them."""

    authorization: Authorization
    token: AccessToken


SEPARATOR: Final = "__"
"""Separates the server from the tool in the names that models use: `github__create_issue`."""
MAX_TOOLS: Final = 100
"""Maximum number of tools of one server; further tools are not listed."""
MAX_PROMPT_ARGUMENTS: Final = 20
"""Maximum number of arguments of a prompt; a prompt with more is not listed."""

McpServerId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,23}$")]
"""A lower-case letter, then up to 23 letters, digits or `-`; no underscore, which begins the separator."""
SecretValue = Annotated[str, StringConstraints(min_length=1, max_length=48_000, pattern=r"^[^\x00\r\n]+$")]
"""The value of a header or a variable; stored values are longer, because they are encrypted."""
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Argument = Annotated[str, StringConstraints(max_length=4_096, pattern=r"^[^\x00]*$")]


Hidden = Annotated[tuple[str, ...], Field(max_length=64, repr=False, exclude_if=lambda hidden: not hidden)]
"""Secrets of the tenant that the values of a transport referred to; results must not contain them."""


class StdioServer(Stored):
    """A program that speaks the protocol over its standard input and output, in the sandbox."""

    type: Literal["stdio"] = "stdio"
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    """The program and its arguments, started for each call in an empty directory, without a network."""
    env: dict[VariableName, SecretValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Environment variables; their values are secrets."""

    @property
    def values(self) -> dict[str, str]:
        """The secrets by the names of their variables."""
        return self.env

    def with_values(self, values: dict[str, str]) -> Self:
        """Return the server with other variables; raise `ValidationError` if one is invalid."""
        return type(self)(command=self.command, env=values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, which no result may contain."""
        return _with_parts(self.env)


class HttpServer(Stored):
    """A server at a URL, reached over streamable HTTP under the network rules of `web_fetch`."""

    type: Literal["http"] = "http"
    url: str = Field(min_length=1, max_length=2_000)
    headers: dict[HeaderName, SecretValue] = Field(default_factory=dict, max_length=32, repr=False)
    """Headers of each request; their values are secrets."""

    @property
    def values(self) -> dict[str, str]:
        """The secrets by the names of their headers."""
        return self.headers

    def with_values(self, values: dict[str, str]) -> Self:
        """Return the server with other headers; raise `ValidationError` if one is invalid."""
        return type(self)(url=self.url, headers=values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, which no result may contain."""
        return _with_parts(self.headers)


def _with_parts(values: dict[str, str]) -> tuple[str, ...]:
    """Return secrets, and the parts that a server may repeat alone, such as the token of `Bearer TOKEN`."""
    return tuple(part for value in values.values() for part in (value, *_parts(value)) if part)


def _parts(value: str) -> Iterator[str]:
    scheme, _, token = value.partition(" ")
    yield token
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            pair = base64.b64decode(token).decode()
            yield from (pair, pair.partition(":")[2])
    with contextlib.suppress(ValueError):
        password = urlsplit(value).password or ""
        yield from (password, unquote(password))


McpTransport = Annotated[StdioServer | HttpServer, Field(discriminator="type")]


class ServedTool(Stored):
    """A tool with the server's description."""

    name: str = Field(max_length=256)
    """The name that the server itself uses for the tool."""
    description: str = Field(default="", max_length=8_000)
    input_schema: JsonObject
    read_only: bool = False
    """Whether the server states that it changes nothing."""
    digest: str
    """SHA-256 of the fields above, which detects a change."""


class PromptArgument(Stored):
    """An argument of a prompt."""

    name: str = Field(max_length=100)
    description: str = Field(default="", max_length=500)
    required: bool = False


class ServedPrompt(Stored):
    """A prompt with the server's description, for users; models do not see it."""

    name: str = Field(max_length=256)
    """The name that the server itself uses for the prompt."""
    title: str = Field(default="", max_length=200)
    description: str = Field(default="", max_length=500)
    arguments: tuple[PromptArgument, ...] = Field(default=(), max_length=MAX_PROMPT_ARGUMENTS)


SignInBy = Literal["tenant", "user"]
"""
tenant  an administrator signs in, and all calls use that access
user    each user signs in, and a call uses the access of the user for whom its run acts
"""
McpProblem = Literal["server", "secret", "sign_in", "unavailable"]
"""
server       the tools of the server could not be listed
secret       a secret of the tenant is missing, or cannot be used
sign_in      a sign-in failed, or the access that it gave has ended
unavailable  no process that could reach the server responded
"""


class SignInState(Stored):
    """The access to a server that a sign-in gave, and a sign-in that has begun."""

    needs_sign_in: bool = Field(default=False, exclude_if=lambda needs: not needs)
    """Whether tools are not called with this access until the next sign-in."""
    pending: PendingSignIn | None = Field(default=None, exclude_if=lambda pending: pending is None)
    signed_in: SignedIn | None = Field(default=None, exclude_if=lambda signed_in: signed_in is None)


class McpServer(SignInState):
    """KV `mcp`, key `{tenant}.{id}`: a server, the tools that are offered, and the access of the tenant."""

    id: McpServerId
    transport: McpTransport
    description: str = Field(default="", max_length=200)
    trusted: bool = False
    """Whether tools that the server declares read-only run without approval."""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Timeout of a call in seconds, including the start of the server."""
    revision: int = Field(default=1, exclude_if=lambda revision: revision == 1)
    """Increases with each change of the configuration only."""
    tools: tuple[ServedTool, ...] = ()
    """The tools that an administrator approved. Only these are offered, while they are served unchanged."""
    changes: tuple[ServedTool, ...] = ()
    """Tools that were new or changed at the last check, and wait for an administrator."""
    replaced: tuple[ServedTool, ...] = Field(default=(), exclude_if=lambda tools: not tools)
    """The approved versions of tools that the server changed, for an administrator to compare."""
    prompts: tuple[ServedPrompt, ...] = Field(default=(), exclude_if=lambda prompts: not prompts)
    """The prompts at the last check."""
    found_at: Timestamp | None = None
    problem: str | None = Field(default=None, exclude_if=lambda problem: problem is None)
    """Why the last listing of its tools or the last sign-in failed."""
    problem_code: McpProblem | None = Field(default=None, exclude_if=lambda code: code is None)
    created_at: Timestamp
    created_by: str
    sign_in: SignInBy = Field(default="tenant", exclude_if=lambda by: by == "tenant")
    client: str | None = Field(default=None, repr=False, exclude_if=lambda client: client is None)
    """The encrypted `OAuthClient` with which users sign in; None without one, and for a tenant's sign-in."""

    @property
    def place(self) -> str:
        """What access is for: a digest of the address or program, and of when the server was configured."""
        return digest(f"{place_of(self.transport)} {self.created_at.isoformat()}".encode())


class McpAccount(SignInState):
    """KV `mcp-accounts`, key `{tenant}.{server}.{digest of the user}`: the access of one user to a server."""

    server: McpServerId
    user: str
    place: str
    """That of the server at the sign-in. Another place never gets the access."""


def place_of(transport: McpTransport) -> object:
    """Return the address or the program of a server, without its secrets."""
    return transport.url if isinstance(transport, HttpServer) else transport.command


def new_account(server: McpServer, user: str) -> McpAccount:
    """Return the record of a user who has not signed in."""
    return McpAccount(server=server.id, user=user, place=server.place, needs_sign_in=True)


def account_key(tenant: str, server_id: str, user: str) -> str:
    """Return the key of an `McpAccount`."""
    return f"{tenant}.{server_id}.{digest(user.encode())[:32]}"


class McpTarget(Stored):
    """How a runner reaches the tool of a call; part of the call request, and never stored."""

    transport: McpTransport = Field(repr=False)
    tool: str
    """The name that the server itself uses for the tool."""
    digest: str
    """The digest of the approved tool; a tool with another digest is not called."""
    hidden: Hidden = ()
    account: str = Field(default="", exclude_if=lambda account: not account)
    """The user whose access is used and the time of the sign-in; empty for that of the tenant. Accounts share
    no session."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, which no result may contain."""
        return (*self.transport.secrets, *self.hidden)


class RefusedTool(Stored):
    """A tool that cannot be offered."""

    name: str
    reason: str


def mcp_server_of(tool: str) -> str | None:
    """Return the MCP server id that a tool's name begins with; None for a tool of no MCP server."""
    server, separator, _ = tool.partition(SEPARATOR)
    return server if separator else None


_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
_MARK_CHARS = 6


def offered_name(server_id: str, tool: str) -> str:
    """Return the name of a tool for models: `{server}__{tool}`.

    If model APIs do not accept it, characters are replaced, and it ends with a part of its digest.
    """
    room = _MAX_NAME - len(server_id) - len(SEPARATOR)
    plain = _FORBIDDEN.sub("_", tool)
    if plain != tool or len(plain) > room:
        mark = digest(tool.encode("utf-8", "surrogatepass"))[:_MARK_CHARS]
        plain = f"{plain[: room - _MARK_CHARS - 1]}-{mark}"
    return f"{server_id}{SEPARATOR}{plain}"


def definition_of(server: McpServer, tool: ServedTool) -> ToolDefinition:
    """Return the definition for models. Only read-only tools of a trusted server need no approval."""
    return ToolDefinition(
        name=offered_name(server.id, tool.name),
        description=tool.description,
        input_schema=tool.input_schema,
        requires_approval=not (server.trusted and tool.read_only),
        category="mcp",
        timeout_s=server.timeout_s,
    )
