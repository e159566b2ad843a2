"""`banksman keys` and `banksman nats`: the API keys of users, the keys of services, and nats-server."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from banksman.bus.settings import MONITORING_PATH
from banksman.cli import output
from banksman.cli.broker.accounts import MONITORING_VARIABLE, generate_keys, key_variable, user_names
from banksman.cli.broker.server import SERVER_ENVIRONMENT, executable, storage_limits
from banksman.cli.broker.store import prepare
from banksman.cli.output import Exit
from banksman.cli.settings import DEPLOYED_STORAGE_BYTES, UpSettings
from banksman.cli.state import DataDir, write_signing_key
from banksman.contracts.administration import DEFAULT_RIGHTS, RIGHTS
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.ids import check_token, digest
from banksman.deployment import users
from banksman.deployment.topology import StorageBudget
from banksman.runtime.durable_files import create_file
from banksman.runtime.key_file import Key, read_keys, update_keys
from banksman.runtime.settings import load

PUBLIC_KEYS = "public.env"
_APPROVAL_KEY_HOLDERS = (users.GATEWAY, users.AGENT, users.WORKFLOWS)


def create_keys(directory: Path, runners: tuple[str, ...] = (), *, as_json: bool) -> Exit:
    """Create missing keys of a deployment, in one directory per service.

    `{service}/{user}.nk` for each NATS user, `approvals.key` for gateway and agent, `monitoring.path`, and
    `nats/public.env` for the server, which receives public keys and that path only. A runner in `runners` has
    its own key and directory.
    """
    public: dict[str, str] = {}
    for user in user_names(runners=runners, tool_servers=(users.EXAMPLE_SERVER,)):
        public |= generate_keys(directory / _service_of(user), [user])
    _share_signing_key(directory)
    server = directory / "nats"
    server.mkdir(mode=0o700, exist_ok=True)
    path = f"/{secrets.token_urlsafe(24)}"
    for folder in (server, *(file.parent for file in directory.glob("*/*.nk"))):
        create_file(folder / MONITORING_PATH, path.encode())
        path = (folder / MONITORING_PATH).read_text(encoding="ascii")
    lines = [f"{key_variable(user)}={key}\n" for user, key in public.items()]
    lines.append(f"{MONITORING_VARIABLE.name}={path}\n")
    (server / PUBLIC_KEYS).write_text("".join(lines), encoding="ascii")
    output.print_result(public, f"keys of {len(public)} users in {directory}", as_json=as_json)
    return Exit.OK


def serve_nats(config: Path, public_keys: Path, *, as_json: bool) -> None:
    """Prepare the server's store, and become nats-server with the public keys of all users."""
    if not public_keys.is_file():
        raise BadInput("--public-keys", str(public_keys), "the file that `banksman keys deployment` wrote")
    keys = dict(line.split("=", 1) for line in public_keys.read_text(encoding="ascii").splitlines() if line)
    environment = {**SERVER_ENVIRONMENT, **os.environ, **keys, **_storage(config)}
    program = executable()
    for sentence in prepare(_store_dir(config)):
        output.print_json({"note": sentence}) if as_json else output.print_error(sentence)
    os.execve(program, [program, "--config", str(config)], environment)


def _storage(config: Path) -> dict[str, str]:
    """Return the bytes of `BANKSMAN_OPERATOR__STORAGE_BYTES` as the variables of a configuration."""
    budget = StorageBudget(load(UpSettings).operator.storage_bytes or DEPLOYED_STORAGE_BYTES)
    clustered = re.search(r"^cluster:", _text(config), re.MULTILINE) is not None
    return storage_limits(budget, clustered=clustered).environment()


def _store_dir(config: Path) -> Path:
    found = re.search(
        r"""^[^#\n]*\bstore_dir["']?\s*[:=\s]\s*["']?([^"'\s}]+)""", _text(config), re.MULTILINE
    )
    if found is None:
        raise BadInput("--config", str(config), 'a configuration with `store_dir: "…"`')
    return Path(found[1])


def _text(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput("--config", str(config), "a readable configuration file") from error


def _service_of(user: str) -> str:
    folders = {users.SYSTEM: users.OPERATOR, users.tool_server(users.EXAMPLE_SERVER).name: users.WORKFLOWS}
    return folders.get(user, user.removesuffix("-files"))


def _share_signing_key(directory: Path) -> None:
    first, *others = (directory / user / "approvals.key" for user in _APPROVAL_KEY_HOLDERS)
    key = write_signing_key(first)
    for file in others:
        write_signing_key(file, key)


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
    """Create the key of a user and print it. Only its digest is stored."""
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
        "rights": list(rights),
        "expires_at": expires_at and expires_at.isoformat(),
        "sha256": digest(token.encode()),
    }

    def add(keys: list[Key]) -> list[Key]:
        if any(key["user"] == user for key in keys):
            raise Conflict(f"{user!r} has a key: `banksman keys rm {user}` removes it")
        return [*keys, new]

    update_keys(_file(data_dir), add)
    facts = {"key": token, "user": user, "tenant": tenant}
    output.print_result(facts, token, problems=(_NEXT,), as_json=as_json)
    return Exit.OK


def ls(data_dir: Path | None, *, as_json: bool) -> Exit:
    for key in read_keys(_file(data_dir)):
        rights = " ".join(cast(list[str], key.get("rights", DEFAULT_RIGHTS)))
        line = f"{key['user']:<24} tenant {key['tenant']}, {rights}"
        if key.get("expires_at"):
            line += f", until {key['expires_at']}"
        output.print_result(key, line, as_json=as_json)
    return Exit.OK


def rm(data_dir: Path | None, user: str, *, as_json: bool) -> Exit:
    """Remove the key of a user. The gateway refuses further requests; open websockets remain."""

    def remove(keys: list[Key]) -> list[Key]:
        left = [key for key in keys if key["user"] != user]
        if len(left) == len(keys):
            raise NotFound("key of user", user)
        return left

    update_keys(_file(data_dir), remove)
    output.print_result({"removed": user}, f"removed the key of {user}", as_json=as_json)
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


def _file(data_dir: Path | None) -> Path:
    settings = load(UpSettings)
    own = DataDir((data_dir or settings.data_dir).resolve()).api_keys_file
    return settings.gateway.keys_file or own
