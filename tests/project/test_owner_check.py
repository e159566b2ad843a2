"""The owner check finds modules of `shared/` with fewer than two users."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TREE = {
    "shared/banksman/bus/__init__.py": "",
    "shared/banksman/bus/connection.py": "from banksman.bus import wire",
    "shared/banksman/bus/wire.py": "",
    "shared/banksman/sdk/__init__.py": "from banksman.sdk.client import Client",
    "shared/banksman/sdk/client.py": "class Client: ...",
    "services/agent/banksman/agent/app.py": "from banksman.bus import connection",
    "services/gateway/banksman/gateway/app.py": "from banksman.bus.connection import connect",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree whose modules of `shared/` all have two users."""
    for path, source in TREE.items():
        write(tmp_path / path, source)
    return tmp_path


def test_modules_that_two_services_reach_through_others_pass(tree: Path) -> None:
    assert check(tree) == (0, [])


def test_a_module_that_one_service_imports_belongs_to_that_service(tree: Path) -> None:
    write(tree / "shared/banksman/bus/guard.py", "")
    write(tree / "services/agent/banksman/agent/worker.py", "from banksman.bus.guard import Guard")

    assert check(tree) == (
        1,
        [
            "shared/banksman/bus/guard.py: only services/agent/banksman/agent imports it; "
            "move it to services/agent/banksman/agent"
        ],
    )


def test_a_module_that_only_the_cli_imports_belongs_to_the_cli(tree: Path) -> None:
    write(tree / "shared/banksman/bus/copies.py", "")
    write(tree / "cli/banksman/cli/backup.py", "import banksman.bus.copies")

    code, (finding,) = check(tree)

    assert code == 1
    assert finding.endswith("move it to cli/banksman/cli")


def test_tests_and_benchmarks_do_not_count_as_users(tree: Path) -> None:
    write(tree / "shared/banksman/bus/fakes.py", "")
    write(tree / "tests/bus/test_fakes.py", "from banksman.bus import fakes")
    write(tree / "benchmarks/fakes.py", "from banksman.bus import fakes")

    code, (finding,) = check(tree)

    assert code == 1
    assert "move it to tests/support or tools" in finding


def test_a_client_counts_as_a_second_user(tree: Path) -> None:
    write(tree / "shared/banksman/bus/storage/live.py", "")
    write(tree / "shared/banksman/sdk/feed.py", "from ..bus.storage.live import follow")
    write(
        tree / "services/gateway/banksman/gateway/fanout.py", "from banksman.bus.storage.live import follow"
    )

    assert check(tree) == (0, [])


def check(tree: Path) -> tuple[int, list[str]]:
    """Run the check on `tree`; its exit code and findings."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_owners.py", tree],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def write(file: Path, source: str) -> None:
    """Create a source file and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
