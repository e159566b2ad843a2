"""Entry points of the services. They are imported by name, so that the CLI depends on no service."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, cast

from banksman.contracts.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from banksman.runtime.settings import ServiceSettings

SERVICES: Mapping[str, str] = {
    "gateway": "banksman.gateway",
    "agent": "banksman.agent",
    "tool-runner": "banksman.tool_runner",
    "workflows": "banksman.workflows",
    "model-server": "banksman.model_server",
}
"""Maps a command to the service's package. `app.run` serves it; `settings` holds its one settings class. The
extra that installs its libraries has the same name as the command."""
_CALL_MODELS = frozenset({"gateway", "agent"})
_COLLECT_AFTER = 10_000
"""Number of additional objects after which Python's garbage collector looks for cycles. With the default of
700, the collector takes a thirtieth of the CPU time of an agent."""


def run_service(name: str, *, json: bool = False, **options: object) -> int:
    """Run a service until it is stopped and return its exit code; `options` are those of its `run`.

    Raises:
        BadInput: a setting is invalid.
        Unavailable: a library is not installed.
    """
    if name in _CALL_MODELS:
        from banksman.cli import settings

        settings.adopt_vendor_names(os.environ)
        settings.adopt_default_model(os.environ)
    module = load_service(name)
    if json:
        from banksman.runtime.settings import load

        os.environ["BANKSMAN_LOG__FORMAT"] = "json"
        # The service reports an invalid setting as text only.
        load(settings_of(name))
    code = module.run(**options)
    if not isinstance(code, int):
        raise BadInput(f"{module.__name__}.run", code, "an exit code")
    return code


def load_service(name: str) -> ModuleType:
    """Import the `app` module of a service; raise `Unavailable` if a library is not installed."""
    # Objects that imports create are never garbage: collecting them costs a seventh of a service's start.
    gc.disable()
    try:
        module = service_module(name, "app")
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"{name}: the library {error.name} is not installed: pip install 'banksman[{name}]'"
        ) from error
    finally:
        gc.enable()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    return module


def service_module(name: str, module: str) -> ModuleType:
    """Import a module of a service; raise `ModuleNotFoundError` if one of its libraries is not installed."""
    return importlib.import_module(f"{SERVICES[name]}.{module}")


def settings_of(name: str) -> type[ServiceSettings]:
    """Return the one settings class of a service; raise `BadInput` if its module has none, or several."""
    from banksman.runtime.settings import ServiceSettings

    module = service_module(name, "settings")
    named = [cast(object, value) for value in vars(module).values()]
    found = {value for value in named if isinstance(value, type) and issubclass(value, ServiceSettings)}
    found.discard(ServiceSettings)
    if len(found) != 1:
        raise BadInput(module.__name__, [cls.__name__ for cls in found], "one settings class")
    return found.pop()
