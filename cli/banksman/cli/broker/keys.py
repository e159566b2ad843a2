"""Keys of NATS users: created once, in files that only their owner can read."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The package has no type annotations and no stubs.
_nkeys: Any = importlib.import_module("nkeys")


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that the server reads from its environment."""

    name: str


def generate_keys(directory: Path, users: Iterable[str]) -> dict[str, str]:
    """Create a key for each user that has none, and return the public keys by user name.

    Each seed is a file `{user}.nk` with mode 0600 in a directory with mode 0700.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {user: _key(seed_file(directory, user)) for user in users}


def seed_file(directory: Path, user: str) -> Path:
    return directory / f"{user}.nk"


def key_variable(user: str) -> str:
    """Return the environment variable of a user's public key, for a configuration without literal keys."""
    return f"BANKSMAN_NKEY_{user.upper().replace('-', '_')}"


def _key(file: Path) -> str:
    if not file.exists():
        # Opened with its final mode: there is no moment in which another user could read it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(_nkeys.encode_seed(secrets.token_bytes(32), _nkeys.PREFIX_BYTE_USER))
    pair = _nkeys.from_seed(bytearray(file.read_bytes().strip()))
    return str(pair.public_key, "ascii")
