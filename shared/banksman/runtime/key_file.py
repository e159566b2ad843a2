"""The file of API keys of a gateway's users, which `banksman keys` and the gateway itself write."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from banksman.contracts.errors import BadInput
from banksman.runtime.durable_files import replace_file, sync_directory

Key = dict[str, object]
"""The description of a key in the format of the gateway's settings; it has only the digest of the key."""


class _Known(BaseModel):
    """The fields that commands need; a gateway checks all of them."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    user: str
    tenant: str
    sha256: str


def read_keys(file: Path) -> list[Key]:
    """Return the keys of a file, none if it does not exist; raise `BadInput` if it is no list of keys."""
    try:
        known = TypeAdapter(list[_Known]).validate_json(file.read_bytes())
        return [key.model_dump() for key in known]
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise BadInput(str(file), None, "must be a JSON list of keys with user, tenant and sha256") from error


def update_keys(file: Path, change: Callable[[list[Key]], list[Key]]) -> None:
    """Replace the keys of the file, one process at a time. Only its owner can read it.

    If `change` raises an error, the file does not change.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        replace_file(file, json.dumps(change(read_keys(file)), indent=1))
        sync_directory(file.parent)
