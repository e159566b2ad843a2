"""Secrets of a tenant: values for its tools that no model sees."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from banksman.contracts.wire import Stored, Timestamp

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
    """The only servers that receive it; None for all of the tenant."""


class SecretDescription(Stored):
    """A secret without its value."""

    name: str
    created_at: Timestamp
    created_by: str
    updated_at: Timestamp
    updated_by: str
    servers: SecretServers | None = Field(default=None, exclude_if=lambda servers: servers is None)
    """The only servers that receive it; absent for all of the tenant."""
