"""The commands that run one service, each imported only when it is asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from banksman.cli import models
from banksman.contracts.errors import BadInput, Unavailable

SERVICES: Mapping[str, str] = {
    "gateway": "banksman.gateway.app",
    "agent": "banksman.agent.app",
    "tool-runner": "banksman.tool_runner.app",
    "workflows": "banksman.workflows.app",
}
"""Command to the module whose `run` serves it; the extra that brings its libraries has the same name."""
_ASK_MODELS = frozenset({"gateway", "agent"})


def run_service(name: str) -> int:
    """Run a service until it is told to stop; returns its exit code.

    Raises:
        BadInput: a setting is wrong.
        Unavailable: a library is not installed.
    """
    if name in _ASK_MODELS:
        models.adopt_vendor_names(os.environ)
        models.adopt_default_model(os.environ)
    try:
        module = importlib.import_module(SERVICES[name])
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"{name}: the library {error.name} is not installed: pip install 'banksman[{name}]'"
        ) from error
    code = module.run()
    if not isinstance(code, int):
        raise BadInput(f"{SERVICES[name]}.run", code, "an exit code")
    return code
