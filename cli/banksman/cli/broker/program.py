"""The nats-server program and its environment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from banksman.contracts.errors import Unavailable

SERVER_ENVIRONMENT: Mapping[str, str] = {"GOGC": "50"}
"""Defaults for the environment of nats-server. With Go's own default of 100, garbage grows to the size of the
live heap. 50 saves up to a quarter of the memory and costs a twentieth more CPU (https://go.dev/doc/gc-guide)."""
SERVER_VARIABLES = ("GOGC", "GOMEMLIMIT")
"""Variables of nats-server that an operator may set."""


def executable() -> str:
    """Return the path of nats-server: the one of this Python environment, otherwise the first in PATH.

    Raises:
        Unavailable: it is not installed.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("nats-server is not installed: pip install 'banksman[nats]'")
    return found
