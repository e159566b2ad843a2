"""`banksman keys create`, `list` and `revoke`: the API keys of a gateway's users, in its file of keys."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from banksman.cli import output
from banksman.cli.output import Exit
from banksman.cli.settings import UpSettings
from banksman.cli.state import DataDir
from banksman.contracts.api import DEFAULT_RIGHTS, RIGHTS
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.ids import check_token, digest
from banksman.runtime.key_file import Key, read_keys, update_keys
from banksman.runtime.settings import load

KEY_BYTES = 32

_NEXT = """The gateway requires a key from now on: create one for yourself too. To let other machines
reach the gateway, start it with BANKSMAN_GATEWAY__HOST=0.0.0.0."""


def create(
    data_dir: Path | None,
    user: str,
    *,
    tenant: str,
    rights: Sequence[str],
    expires_days: float | None,
    as_json: bool,
) -> Exit:
    """Create the key of a user and print it. Only its digest is stored.

    Raises:
        BadInput: the name of the tenant, the user or a right is invalid.
        Conflict: the user has a key.
    """
    check_token(tenant, "tenant")
    if not 0 < len(user) <= 200:
        raise BadInput("user", user, "a name of 1 to 200 characters")
    if unknown := set(rights) - set(RIGHTS):
        raise BadInput("right", min(unknown), f"one of {', '.join(RIGHTS)}")
    expires_at = None if expires_days is None else datetime.now(UTC) + timedelta(days=expires_days)
    token = f"bk-{secrets.token_urlsafe(KEY_BYTES)}"
    new: Key = {
        "user": user,
        "tenant": tenant,
        # Earlier versions of gateways read this field instead of `rights`.
        "may_approve": "approve" in rights,
        "rights": list(rights),
        "expires_at": expires_at and expires_at.isoformat(),
        "sha256": digest(token.encode()),
    }

    def add(keys: list[Key]) -> list[Key]:
        if any(key["user"] == user for key in keys):
            raise Conflict(f"{user!r} has a key: `banksman keys rm {user}` removes it")
        return [*keys, new]

    update_keys(_file(data_dir), add)
    if as_json:
        output.print_json({"key": token, "user": user, "tenant": tenant})
    else:
        output.print_line(token)
        output.print_error(_NEXT)
    return Exit.OK


def ls(data_dir: Path | None, *, as_json: bool) -> Exit:
    """List the users with keys."""
    for key in read_keys(_file(data_dir)):
        line = f"{key['user']:<24} tenant {key['tenant']}, {_rights(key)}"
        if key.get("expires_at"):
            line += f", until {key['expires_at']}"
        output.print_json(key) if as_json else output.print_line(line)
    return Exit.OK


def rm(data_dir: Path | None, user: str, *, as_json: bool) -> Exit:
    """Remove the key of a user. The gateway refuses further requests; open websockets remain.

    Raises:
        NotFound: the user has no key.
    """

    def remove(keys: list[Key]) -> list[Key]:
        left = [key for key in keys if key["user"] != user]
        if len(left) == len(keys):
            raise NotFound("key of user", user)
        return left

    update_keys(_file(data_dir), remove)
    output.print_json({"removed": user}) if as_json else output.print_line(f"removed the key of {user}")
    return Exit.OK


def remove_of_tenant(data_dir: Path | None, tenant: str) -> int:
    """Remove the keys of a tenant's users from the file of keys; return how many.

    Raises:
        Conflict: all keys are of this tenant, and a gateway without keys would serve every client.
    """
    found = read_keys(_file(data_dir))
    kept = [key for key in found if key["tenant"] != tenant]
    if len(kept) == len(found):
        return 0
    if not kept:
        raise Conflict(
            f"all keys are of tenant {tenant!r}, and without any the gateway would serve everyone: "
            "`banksman keys create` creates one of another tenant"
        )
    update_keys(_file(data_dir), lambda keys: [key for key in keys if key["tenant"] != tenant])
    return len(found) - len(kept)


def _rights(key: Key) -> str:
    kept = cast(list[str], key.get("rights", DEFAULT_RIGHTS))
    return " ".join(right for right in kept if right != "approve" or key.get("may_approve", True))


def _file(data_dir: Path | None) -> Path:
    settings = load(UpSettings)
    own = DataDir((data_dir or settings.data_dir).resolve()).api_keys_file
    return settings.gateway.keys_file or own
