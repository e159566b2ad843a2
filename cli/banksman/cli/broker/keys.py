"""Keys of NATS users: made once, kept where only their owner reads them."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Untyped, and without stubs.
_nkeys: Any = importlib.import_module("nkeys")


def generate_keys(directory: Path, users: Iterable[str]) -> dict[str, str]:
    """Make a key for every user that has none yet, and return the public ones by user name.

    Each seed is a file `{user}.nk` with mode 0600 in a directory with mode 0700.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {user: _key(seed_file(directory, user)) for user in users}


def seed_file(directory: Path, user: str) -> Path:
    """Where `generate_keys` keeps a user's seed."""
    return directory / f"{user}.nk"


def key_variable(user: str) -> str:
    """The environment variable that holds a user's public key for a configuration without literal keys."""
    return f"BANKSMAN_NKEY_{user.upper().replace('-', '_')}"


def _key(file: Path) -> str:
    if not file.exists():
        # Created with its mode, so that no moment exists in which others could read it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(_nkeys.encode_seed(secrets.token_bytes(32), _nkeys.PREFIX_BYTE_USER))
    pair = _nkeys.from_seed(bytearray(file.read_bytes().strip()))
    return str(pair.public_key, "ascii")
