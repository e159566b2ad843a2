"""`banksman keys deployment` and `banksman nats`: the keys of a deployment's services, and its server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from banksman.cli import output
from banksman.cli.broker.accounts import user_names
from banksman.cli.broker.keys import generate_keys, key_variable
from banksman.cli.broker.program import SERVER_ENVIRONMENT, executable
from banksman.cli.broker.store import prepare
from banksman.cli.output import Exit
from banksman.cli.state import write_signing_key
from banksman.contracts.errors import BadInput
from banksman.deployment import users

PUBLIC_KEYS = "public.env"
_APPROVAL_KEY_HOLDERS = (users.GATEWAY, users.AGENT, users.WORKFLOWS)


def create_keys(directory: Path, runners: tuple[str, ...] = (), *, as_json: bool) -> Exit:
    """Create missing keys of a deployment, in one directory per service.

    `{service}/{user}.nk` for each NATS user, `approvals.key` for gateway and agent, and `nats/public.env` for
    the server, which receives public keys only. A runner with its own key has its own directory.

    Args:
        directory: The directory of all keys.
        runners: Ids of the runners with their own keys; empty for one key that all runners share.
        as_json: Whether to print the public keys as JSON.

    Raises:
        BadInput: An id is malformed.
    """
    public: dict[str, str] = {}
    for user in user_names(runners=runners):
        public |= generate_keys(directory / _service_of(user), [user])
    _share_signing_key(directory)
    server = directory / "nats"
    server.mkdir(mode=0o700, exist_ok=True)
    lines = [f"{key_variable(user)}={key}\n" for user, key in public.items()]
    (server / PUBLIC_KEYS).write_text("".join(lines), encoding="ascii")
    output.print_json(public) if as_json else output.print_line(f"keys of {len(public)} users in {directory}")
    return Exit.OK


def serve_nats(config: Path, public_keys: Path, *, as_json: bool) -> None:
    """Prepare the server's store, and replace this process by nats-server with the public keys of all users.

    Raises:
        BadInput: a file is missing, or the configuration names no `store_dir`.
        Unavailable: nats-server is not installed.
    """
    if not public_keys.is_file():
        raise BadInput("--public-keys", str(public_keys), "the file that `banksman keys` wrote")
    keys = dict(line.split("=", 1) for line in public_keys.read_text(encoding="ascii").splitlines() if line)
    program = executable()
    for sentence in prepare(_store_dir(config)):
        output.print_json({"note": sentence}) if as_json else output.print_error(sentence)
    os.execve(program, [program, "--config", str(config)], {**SERVER_ENVIRONMENT, **os.environ, **keys})


def _store_dir(config: Path) -> Path:
    """Return the `store_dir` of a configuration file of nats-server."""
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
    """Return the service whose directory holds a user's seed."""
    return users.OPERATOR if user == users.SYSTEM else user.removesuffix("-files")


def _share_signing_key(directory: Path) -> None:
    """Write the same key for all services that sign or verify approval decisions."""
    first, *others = (directory / user / "approvals.key" for user in _APPROVAL_KEY_HOLDERS)
    key = write_signing_key(first)
    for file in others:
        write_signing_key(file, key)
