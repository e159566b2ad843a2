"""Connection settings of a service: from its environment, or from a local system that `banksman up` runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from banksman.bus.settings import NatsSettings
from banksman.contracts.errors import Unavailable
from banksman.contracts.local_files import CONTEXT_FILE

URL_VARIABLE = "NATS_URL"
"""Variable with the address of a server, or the addresses of a cluster separated by commas."""
SEED_VARIABLE = "NATS_SEED_FILE"
DATA_DIR_VARIABLE = "BANKSMAN_DATA_DIR"
CONNECT_TIMEOUT_S = 3.0
"""Seconds to connect to the local system, which may have had another address before."""


def nats_settings() -> NatsSettings:
    """Return the settings of the environment or of the local system; raise `Unavailable` without either."""
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
    return NatsSettings(
        url=context["url"], nkey_seed_file=Path(context["nkey"]), connect_timeout_s=CONNECT_TIMEOUT_S
    )
