"""The import rules of pyproject.toml find each violation, across all namespace roots."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.paths import ROOT

RUNNER = "services/tool-runner/banksman/tool_runner/"

TREE = {
    "shared": [
        "contracts",
        "library_internals",
        "runtime",
        "bus",
        "bus/storage",
        "deployment",
        "quotas",
        "log_integrity",
        "runs",
        "sdk",
    ],
    "cli": ["cli", "cli/local", "cli/operator", "cli/client"],
    "services/model-server": ["model_server"],
    "services/gateway": [
        "gateway",
        *(
            f"gateway/{part}"
            for part in (
                *("approvals", "assistants", "audit", "conversations", "files"),
                *("housekeeping", "identity", "live", "mcp_servers", "oidc", "operation", "operator"),
                *("quotas", "runs", "schedules", "steps", "usage", "webhooks", "workflows"),
                *("interfaces", "interfaces/a2a", "interfaces/agui", "interfaces/mcp", "interfaces/page"),
                *("interfaces/passthrough", "interfaces/websocket"),
            )
        ),
    ],
    "services/agent": ["agent", "agent/logs", "agent/model", "agent/providers"],
    "services/tool-runner": [
        *(f"tool_runner{part}" for part in ("", "/mcp", "/sandbox", "/sandbox/docker")),
    ],
    "services/workflows": ["workflows"],
}

VALID = {
    "services/gateway/banksman/gateway/composition.py": "from banksman.gateway import schedules, webhooks",
    **{
        f"services/gateway/banksman/gateway/{name}.py": "from banksman.gateway import interfaces"
        for name in ("app", "front")
    },
    "services/gateway/banksman/gateway/feature.py": "from banksman.gateway import operation",
    "services/gateway/banksman/gateway/runs/operations.py": "from banksman.gateway import operation",
    "services/gateway/banksman/gateway/schedules/due.py": "",
    "services/gateway/banksman/gateway/webhooks/service.py": "from banksman.gateway import runs",
    "shared/banksman/bus/connection.py": "import nats\nimport faststream\nfrom banksman import contracts",
    "shared/banksman/bus/queues.py": "from banksman.quotas import places",
    "shared/banksman/quotas/places.py": "",
    "shared/banksman/quotas/stored.py": "from banksman.bus import connection",
    "shared/banksman/runs/log.py": "from banksman.bus import connection",
    "services/agent/banksman/agent/app.py": "import faststream\nfrom banksman import runs, runtime, bus",
    "services/agent/banksman/agent/logs/heads_recorder.py": "",
    "services/agent/banksman/agent/providers/vendor.py": "import anthropic\nimport openai",
    "services/agent/banksman/agent/providers/backboard.py": (
        "from banksman.agent.providers import backboard_api, backboard_request"
    ),
    "services/agent/banksman/agent/providers/backboard_api.py": "import backboard",
    "services/agent/banksman/agent/providers/backboard_request.py": "",
    "services/agent/banksman/agent/providers/catalog.py": "from banksman.agent.providers import backboard",
    RUNNER + "app.py": "from banksman.tool_runner import mcp",
    RUNNER + "lifecycle.py": "import banksman.tool_runner.sandbox.docker",
    RUNNER + "sandbox/docker/engine.py": "import docker",
    "services/workflows/banksman/workflows/worker.py": "import nats",
}

INVALID = [
    (
        "services/gateway/banksman/gateway/interfaces/websocket/connection.py",
        "from banksman import agent",
        "Services build on runs",
    ),
    (
        "services/agent/banksman/agent/worker.py",
        "import banksman.tool_runner.sandbox",
        "Services build on runs",
    ),
    ("shared/banksman/bus/storage/log.py", "from banksman import runs", "Services build on runs"),
    ("shared/banksman/runtime/ready.py", "from banksman import agent", "Services build on runs"),
    ("shared/banksman/quotas/loans.py", "from banksman import runtime", "Only the limits of what"),
    ("shared/banksman/contracts/wire.py", "import httpx", "Contracts do no I/O"),
    ("shared/banksman/contracts/clock.py", "import asyncio", "Contracts do no I/O"),
    ("services/agent/banksman/agent/model/compaction.py", "import nats", "NATS and FastStream only"),
    (
        "services/gateway/banksman/gateway/interfaces/page/routes.py",
        "from faststream.nats import NatsBroker",
        "NATS and FastStream only",
    ),
    (
        "services/gateway/banksman/gateway/interfaces/passthrough/upstreams.py",
        "import openai",
        "Model SDKs only",
    ),
    (
        "services/agent/banksman/agent/model/compaction.py",
        "from anthropic import AsyncAnthropic",
        "Model SDKs only",
    ),
    (
        "services/agent/banksman/agent/app.py",
        "from banksman.agent.providers import backboard",
        "The Backboard provider is imported by the catalog",
    ),
    (
        "services/agent/banksman/agent/worker.py",
        "from banksman.agent.logs import heads_recorder",
        "The protection from damaged logs is imported by the agent's composition",
    ),
    (RUNNER + "app.py", "import docker", "The Docker SDK only"),
    (
        RUNNER + "settings.py",
        "from banksman.tool_runner.sandbox.docker import engine",
        "The Docker sandbox can be removed",
    ),
    (
        RUNNER + "execution.py",
        "from banksman.tool_runner import mcp",
        "MCP servers as tools can be removed",
    ),
    (
        "services/gateway/banksman/gateway/interfaces/push.py",
        "from banksman.gateway import webhooks",
        "Optional features of the gateway",
    ),
    (
        "services/agent/banksman/agent/app.py",
        "from tests import support",
        "No code of the product imports tests",
    ),
    (
        "services/gateway/banksman/gateway/runs/starts.py",
        "import banksman.gateway.schedules.due",
        "Optional features of the gateway",
    ),
    (
        "services/gateway/banksman/gateway/interfaces/a2a/methods.py",
        "import banksman.gateway.webhooks.service",
        "Optional features of the gateway",
    ),
    (
        "services/gateway/banksman/gateway/interfaces/websocket/connection.py",
        "import banksman.gateway.runs.operations",
        "The gateway's interfaces request operations",
    ),
    (
        "services/gateway/banksman/gateway/files/files.py",
        "import banksman.gateway.interfaces.websocket",
        "The gateway's features import no interface",
    ),
    (
        "services/gateway/banksman/gateway/operation/dispatch.py",
        "import banksman.gateway.quotas",
        "Operations know no feature",
    ),
    (
        "cli/banksman/cli/local/app.py",
        "from banksman.cli import operator",
        "The three parts of the CLI",
    ),
    ("cli/banksman/cli/services.py", "from banksman.agent import app", "The CLI imports no service"),
    ("shared/banksman/unlisted/__init__.py", "unlisted = True", "Services build on runs"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with this project's roots that follows its rules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for root, packages in TREE.items():
        for package in packages:
            _write(tmp_path / root / "banksman" / package / "__init__.py", "")
    for path, source in VALID.items():
        _write(tmp_path / path, source)
    return tmp_path


def test_a_tree_that_follows_the_import_rules_passes(tree: Path) -> None:
    done = check_imports(tree)

    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(("path", "source", "contract"), INVALID, ids=[source for _, source, _ in INVALID])
def test_an_import_that_breaks_a_rule_is_reported(tree: Path, path: str, source: str, contract: str) -> None:
    _write(tree / path, source)

    done = check_imports(tree)

    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert done.returncode == 1
    assert [line.startswith(contract) for line in broken] == [True], done.stdout


def check_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on `tree` only: -S excludes this project's editable install from the namespace."""
    run = (
        "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-logo', '--no-cache'])"
    )
    path = [*(str(tree / root) for root in TREE), sysconfig.get_path("purelib")]
    return subprocess.run(
        [sys.executable, "-S", "-c", run],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def _write(file: Path, source: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
