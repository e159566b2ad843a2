"""The modules that a process imports when it starts: they cost CPU at each start, and memory."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from banksman.cli.template import IMPORTED_LATER

VENDOR_SDKS = {"anthropic", "backboard", "openai"}
COMMAND_LINE = {"typer"}
"""The parser of the command line."""

UNUSED = {
    "gateway": VENDOR_SDKS | COMMAND_LINE | {"docker", "httpx", "html_to_markdown"},
    "agent": VENDOR_SDKS | COMMAND_LINE | {"docker", "fastapi", "httpx", "html_to_markdown", "websockets"},
    "tool-runner": VENDOR_SDKS | COMMAND_LINE | {"aiohttp", "docker", "fastapi", "websockets"},
    "workflows": VENDOR_SDKS
    | COMMAND_LINE
    | {"aiohttp", "docker", "fastapi", "httpx", "html_to_markdown", "websockets"},
    "model-server": VENDOR_SDKS
    | COMMAND_LINE
    | {"docker", "fastapi", "faststream", "httpx", "nats", "uvicorn"},
}
"""Installed libraries that a service must not import when it starts."""

MOST_MODULES = {"gateway": 1440, "agent": 1090, "tool-runner": 1170, "workflows": 1085, "model-server": 565}
"""Upper bounds for the modules of a started service, one in ten above their number with Python 3.11."""

IMPORT_SERVICE = """
import json, sys
from banksman.cli.main import main
from banksman.cli.services import load_service
load_service(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""

MOST_MODULES_OF_AN_ADAPTER = {"anthropic:claude-sonnet-5-5": 2320, "openai:gpt-5-mini": 1210}
"""Upper bounds for the modules of an agent with a warm default model. Anthropic's whole SDK makes them 4,000,
and costs up to a second of CPU and 30 MiB more."""

WARM_MODEL = """
import asyncio, json, sys
from banksman.cli.main import main
from banksman.cli.services import load_service
load_service("agent")
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers

async def warm():
    providers = Providers(ProviderSettings())
    await providers.warm(sys.argv[1])
    await providers.close()

asyncio.run(warm())
print(json.dumps(sorted(sys.modules)))
"""

COUNT_VALIDATORS = """
import json
from banksman.cli.services import load_service
from pydantic import BaseModel

def below(model):
    for one in model.__subclasses__():
        yield from (one, *below(one))

load_service("gateway")
print(json.dumps([model.__name__ for model in set(below(BaseModel)) if model.__pydantic_complete__]))
"""

IMPORT_SUPERVISOR = """
import json, sys
import banksman.cli.local.supervisor
print(json.dumps(sorted(sys.modules)))
"""

IMPORT_LAUNCHER = """
import json, sys
import banksman.cli.local.command
print(json.dumps(sorted(sys.modules)))
"""


def modules_of(program: str, *arguments: str) -> list[str]:
    """Return the names of the modules that a program has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("service", UNUSED)
def test_service_imports_no_library_that_it_does_not_use(service: str) -> None:
    modules = modules_of(IMPORT_SERVICE, service)

    assert {name.partition(".")[0] for name in modules} & UNUSED[service] == set()
    assert len(modules) <= MOST_MODULES[service]


@pytest.mark.parametrize("model", MOST_MODULES_OF_AN_ADAPTER)
def test_warm_model_imports_what_its_adapter_uses(model: str) -> None:
    modules = modules_of(WARM_MODEL, model)

    assert "banksman.agent.providers.base" in modules
    assert len(modules) <= MOST_MODULES_OF_AN_ADAPTER[model]


def test_gateway_builds_no_validator_of_a_body_before_a_request() -> None:
    """FastAPI builds those of all routes when it creates them: half a second of each start."""
    built = modules_of(COUNT_VALIDATORS)

    # FastAPI's own models are complete on import; one of them is `RequestBody`.
    assert {name for name in built if name.endswith("Body")} == {"CancelBody", "RequestBody"}
    assert len(built) <= 95


def test_built_in_tools_do_not_import_the_parser_of_docstrings() -> None:
    modules = modules_of(
        "import json, sys, banksman.workflows.example_tools; print(json.dumps([*sys.modules]))"
    )

    assert "docstring_parser" not in modules


@pytest.mark.parametrize("module", IMPORTED_LATER)
def test_modules_that_the_template_imports_exist(module: str) -> None:
    """The template skips a missing module, and each service then imports its replacement again."""
    assert find_spec(module) is not None


def test_launcher_imports_neither_a_service_nor_a_framework() -> None:
    modules = modules_of(IMPORT_LAUNCHER)

    frameworks = {
        "aiohttp",
        "fastapi",
        "faststream",
        "httpx",
        "jsonschema_rs",
        "rich",
        "starlette",
        "structlog",
        "typer",
        "uvicorn",
    }
    assert {name.partition(".")[0] for name in modules} & frameworks == set()
    services = {"gateway", "agent", "tool_runner", "workflows", "model_server"}
    assert {name.split(".")[1] for name in modules if name.startswith("banksman.")} & services == set()
    assert len(modules) <= 510


def test_supervisor_imports_neither_settings_nor_nats() -> None:
    """It runs as long as the system: they would make its memory three times as large."""
    modules = modules_of(IMPORT_SUPERVISOR)

    assert {name.partition(".")[0] for name in modules} & {"nats", "pydantic", "typer"} == set()
    assert len(modules) <= 212
