"""Tool definitions, calls and results; the hosts that calls may reach, and the tenant's secrets for tools."""

from __future__ import annotations

import json
import re
from typing import Annotated, Final, Literal, cast

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from banksman.contracts.ids import digest
from banksman.contracts.urls import HttpUrl, UrlRefused, parse_url
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token

MIN_SECRET_CHARS: Final = 8
"""Minimum length of a secret in characters; redacting a shorter one would redact parts of ordinary words."""
MAX_SECRET_CHARS: Final = 8_000
MAX_SECRETS_OF_TOOL: Final = 16

NAME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_]{0,63}"
SecretName = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$")]
"""A letter, then up to 63 letters, digits or `_`."""

REFERENCE: Final = re.compile(rf"\$\{{secret\.({NAME_PATTERN})\}}")
"""A reference to a secret in a header or a variable of an MCP server: `${secret.NAME}`."""


MCP_PREFIX: Final = "mcp:"
SecretServer = Annotated[str, StringConstraints(pattern=r"^(mcp:)?[A-Za-z0-9_-]{1,64}$")]
"""A tool server by its name, or an MCP server as `mcp:` and its id."""
SecretServers = Annotated[tuple[SecretServer, ...], Field(min_length=1, max_length=32)]


class StoredSecret(Stored):
    """KV `tenant-secrets`, key `{tenant}.{name}`: an encrypted secret."""

    name: SecretName
    sealed: str = Field(repr=False)
    """The encrypted value in base64, bound to tenant and name."""
    created_at: Timestamp
    created_by: str
    updated_at: Timestamp
    updated_by: str
    servers: SecretServers | None = Field(default=None, exclude_if=lambda servers: servers is None)


class SecretDescription(Stored):
    """A secret without its value."""

    name: str
    created_at: Timestamp
    created_by: str
    updated_at: Timestamp
    updated_by: str
    servers: SecretServers | None = Field(default=None, exclude_if=lambda servers: servers is None)
    """The only servers that receive it; absent for all of the tenant."""


MAX_PATTERNS = 200
"""Maximum number of patterns in one list."""

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_*?")
_EXPECTED = (
    "must be a host such as example.org, *.example.org, 203.0.113.5 or [2001:db8::1], in ASCII (xn-- for "
    "other letters), with or without :port"
)


def split_pattern(pattern: str) -> tuple[str, int | None]:
    """Return the glob of the host, and the port or None for every port; raise `ValueError` for no pattern."""
    host, colon, port = pattern.lower().rpartition(":")
    if not colon or pattern.endswith("]"):
        host, port = pattern.lower(), ""
    if host.startswith("[") and host.endswith("]"):
        host, letters = host[1:-1], frozenset("0123456789abcdef:.")
    else:
        letters = _LETTERS
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host or len(host) > 253 or not letters.issuperset(host) or (colon and port and not number):
        raise ValueError(_EXPECTED)
    if (port and not 0 < number < 65536) or pattern.endswith(":"):
        raise ValueError(_EXPECTED)
    return host, number or None


def _checked(pattern: str) -> str:
    split_pattern(pattern)
    return pattern.lower()


HostPattern = Annotated[str, AfterValidator(_checked)]
"""A host name or address. `*` matches any characters, `?` one character; `:port` restricts it to one port.

`*.example.org` matches every name below `example.org`, but not `example.org` itself.
"""

HostPatterns = Annotated[tuple[HostPattern, ...], Field(max_length=MAX_PATTERNS)]


def _one_host(host: str) -> str:
    if "*" in host or "?" in host:
        raise ValueError("must be one host, without * and ?, with or without :port")
    return _checked(host)


def _registry_url(url: str) -> str:
    try:
        scheme = parse_url(url).scheme
    except UrlRefused as refused:
        raise ValueError(f"must be the URL of a registry: {refused}") from refused
    if scheme not in ("http", "https"):
        raise ValueError("must be the URL of a registry, https:// or http://")
    return url


class Registry(Stored):
    """A registry of packages that commands of a tenant may install from."""

    kind: Literal["npm", "pypi"]
    """The format that it serves: of npm, or the simple API of Python packages that pip uses."""
    url: Annotated[str, Field(max_length=500), AfterValidator(_registry_url)]
    """Its address as programs expect it, with its path, such as `/simple` of an index; without a password."""
    hosts: Annotated[tuple[Annotated[str, AfterValidator(_one_host)], ...], Field(max_length=10)] = ()
    """Further hosts from which it serves files, with or without a port; other ports than 443 need one."""
    assistants: Annotated[tuple[Token, ...], Field(max_length=MAX_PATTERNS)] | None = None
    """The only assistants whose commands reach it; None for all of the tenant."""

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Host and port of the registry and of its files."""
        url = parse_url(self.url)
        further = ((host, port or 443) for host, port in map(split_pattern, self.hosts))
        return ((url.host, url.port), *further)


SearchApi = Literal["searxng", "brave", "tavily"]


class SearchChoice(Stored):
    """A provider of web searches."""

    provider: SearchApi
    url: HttpUrl | None = None
    """Address of its search API. None means that of the vendor; `searxng` has none."""
    secret: SecretName | None = None
    """The tenant's secret with its key."""


class NetworkPolicy(Stored):
    """The hosts that calls may reach, within those that the operator of the runner allows."""

    allow_hosts: HostPatterns = ("*",)
    """A host that matches none of these is refused, also after a redirect."""
    deny_hosts: HostPatterns = ()
    """Hosts that are refused even if `allow_hosts` matches."""
    commands: bool = False
    """True lets `bash` reach these hosts over HTTP and HTTPS through a proxy, if the operator permits it."""
    registries: tuple[Registry, ...] = Field(default=(), exclude_if=lambda registries: not registries)
    """The registries of the tenant's policy that `bash` may install from. An assistant cannot state any."""


ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$")]
"""A letter, then up to 63 letters, digits, `_` or `-`: the names that both vendors accept."""

ErrorKind = Literal[
    "invalid_arguments",
    "unknown_tool",
    "denied",
    "rejected",
    "not_executed",
    "cancelled",
    "timeout",
    "tool_error",
    "output_limit",
    "unknown_outcome",
    "unavailable",
]
"""
invalid_arguments  the arguments do not match the tool's schema, or are not JSON
unknown_tool       no tool of this name is registered or allowed
denied             the assistant's policy denies the call
rejected           a user rejected the call
not_executed       the call never started (an earlier call was rejected, or the run was steered)
cancelled          the run was cancelled
timeout            the call reached its timeout
tool_error         the tool failed
output_limit       the call wrote more output than allowed
unknown_outcome    the call started and its outcome is unknown; it is not repeated
unavailable        no runner or tool server accepted the call
"""


Secrets = Annotated[
    tuple[SecretName, ...], Field(max_length=MAX_SECRETS_OF_TOOL, exclude_if=lambda secrets: not secrets)
]


class ToolDefinition(Stored):
    """The description of a tool for models, and how the platform handles its calls."""

    name: ToolName
    description: str = Field(max_length=8_000)
    """The description for models."""
    input_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments object; empty or null for a tool without parameters."""
    requires_approval: bool = False
    category: str = Field(default="general", max_length=64)
    idempotent: bool = False
    """True if a call may run twice. Then no start is recorded, and a lost call is repeated."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds after which a running call is ended with a `timeout` result."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Tools with a lower priority are dropped first when not all fit into the prompt."""
    terminate: bool = Field(default=False, exclude_if=lambda terminate: not terminate)
    """True if every call ends the run: the result is the answer, without another model request."""
    server: Token | None = None
    """The tool server that executes its calls; None for the runner that owns the workspace."""
    secrets: Secrets = ()
    """Names of the tenant's secrets that each call receives. Only a tenant's own tool server receives any."""

    @field_validator("input_schema", mode="before")
    @classmethod
    def _with_object_type(cls, value: object) -> object:
        # Model APIs refuse a tool whose schema lacks the type `object` at its top level.
        match value:
            case None:
                return {"type": "object", "properties": {}}
            case dict():
                schema = cast(JsonObject, value)
                return schema if "type" in schema else {"type": "object", "properties": {}, **schema}
            case _:
                return value


class ToolCall(Stored):
    """One tool call as stored in the log."""

    id: Token
    """Unique in the tenant and a valid token of a subject; generated by the agent."""
    name: str = Field(max_length=256)
    """The name as the model wrote it, known or not."""
    arguments: JsonObject = Field(default_factory=dict)
    provider_call_id: str | None = None
    """The id that the model's API assigned and expects with the result."""
    terminate: bool = False
    """True if the result ends the run, without another model request."""
    requires_approval: bool = False
    idempotent: bool = False
    timeout_s: float = 60.0
    server: Token | None = None
    secrets: Secrets = ()
    """Names of the tenant's secrets that its request contains."""
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """Hosts that a call of a workspace tool may reach, from the assistant's settings. None allows `web_fetch`
    all hosts that the runner's operator allows, and commands none."""

    @property
    def digest(self) -> str:
        """Digest that an approval decides and the runner verifies; see `call_digest`."""
        return call_digest(self.name, self.arguments, self.network)


def call_digest(name: str, arguments: JsonObject, network: NetworkPolicy | None = None) -> str:
    """Return the SHA-256 of `[name, arguments, network if any]` in canonical JSON (sorted keys, UTF-8)."""
    elements = [name, arguments, *([] if network is None else [network.model_dump(mode="json")])]
    canonical = json.dumps(elements, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest(canonical.encode("utf-8"))


class AskedInput(Stored):
    """A value that the server of a call requests from the user before it continues the call."""

    message: str = Field(max_length=2_000)
    schema_: JsonObject = Field(alias="schema")
    """JSON Schema of the value."""
    expires_s: float = Field(gt=0, le=86_400)
    """Seconds within which the server waits for the value."""


class ToolResult(Stored):
    """The one result of a call."""

    tool_call_id: Token
    content: JsonObject
    """An object with `success` and the tool's values; it contains at most 10,000 characters of output."""
    is_error: bool = False
    error_kind: ErrorKind | None = None
    exit_code: int | None = None
    truncated: bool = False
    output_ref: str | None = None
    """Name of the object with the full output if `truncated`; otherwise None."""
    output_key: str | None = Field(default=None, repr=False, exclude_if=lambda key: key is None)
    """The key that decrypts this object, in hexadecimal; None if it is not encrypted."""
    duration_ms: int = 0
    """Milliseconds from start to end of the execution; 0 if it never started."""
    runner: Token | None = None
    """The runner that executed it; None if it was not executed."""
    started_at: Timestamp | None = None
    changed: tuple[PathChange, ...] = ()
    """Files of the workspace that the call changed: of a command, the first 200."""
    changed_more: int = Field(default=0, exclude_if=lambda more: more == 0)
    """The number of further changed files."""
    asks: AskedInput | None = Field(default=None, exclude_if=lambda asked: asked is None)
    """Set if the call waits for a user: the next attempt continues it. No event contains it."""


Change = Literal["created", "modified", "deleted"]


class PathChange(Stored):
    """One changed file of a workspace."""

    path: str
    change: Change


def failed(tool_call_id: str, kind: ErrorKind, error: str) -> ToolResult:
    """Return the result of a call that was not executed, or whose execution failed."""
    return ToolResult(
        tool_call_id=tool_call_id,
        content={"success": False, "error": error, "error_kind": kind},
        is_error=True,
        error_kind=kind,
    )


ToolResult.model_rebuild()
