"""How a service finds NATS: by its environment, else beside a system that `banksman up` runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from banksman.bus.connection import NatsSettings
from banksman.contracts.errors import Unavailable

URL_VARIABLE = "NATS_URL"
"""A server, or several of a cluster with commas between them."""
SEED_VARIABLE = "NATS_SEED_FILE"
DATA_DIR_VARIABLE = "BANKSMAN_DATA_DIR"
CONTEXT_FILE = "nats-context.json"
"""In the data directory of `banksman up`, in the form that the `nats` command reads: where its NATS is, and
the seed of local services."""


def nats_settings() -> NatsSettings:
    """`NATS_URL` and `NATS_SEED_FILE` where they are set, else the system that runs in `BANKSMAN_DATA_DIR`.

    Raises:
        Unavailable: neither is there.
    """
    if url := os.environ.get(URL_VARIABLE):
        seed = os.environ.get(SEED_VARIABLE)
        return NatsSettings(url=tuple(url.split(",")), nkey_seed_file=Path(seed) if seed else None)
    file = Path(os.environ.get(DATA_DIR_VARIABLE, ".banksman")) / CONTEXT_FILE
    try:
        context = cast(dict[str, Any], json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise Unavailable(
            f"{URL_VARIABLE} is not set and {file} does not exist: start `banksman up` in this directory"
        ) from error
    return NatsSettings(url=context["url"], nkey_seed_file=Path(context["nkey"]))
