import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST_SDK_MODULES = 1_200
"""Upper bound for the modules of Anthropic's SDK that its adapter needs."""

SOURCES = {
    "large/__init__.py": """
from large import types
from large._client import Client
EVERYTHING = (Client, types)
""",
    "large/_client.py": "from .types import TextBlock\nclass Client:\n    block = TextBlock\n",
    "large/types/__init__.py": "from .text_block import TextBlock\nfrom .image import Image\n",
    "large/types/text_block.py": "class TextBlock: ...\n",
    "large/types/image.py": "class Image: ...\n",
}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a folder with a library whose packages import all their modules."""
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path


def executed(folder: Path, program: str) -> object:
    """Run a program that defers the library; return its JSON output."""
    start = "import json, sys\nfrom banksman.library_internals.python_imports import defer\n"
    start += "defer('large', '_client')\n"
    done = subprocess.run(
        [sys.executable, "-c", start + program], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_name_of_a_deferred_library_imports_only_its_modules(large: Path) -> None:
    program = """
from large import Client
loaded = sorted(name for name in sys.modules if name.startswith("large"))
print(json.dumps([Client.block.__name__, loaded]))
"""

    loaded = ["large", "large._client", "large.types", "large.types.text_block"]
    assert executed(large, program) == ["TextBlock", loaded]


def test_name_that_only_init_defines_runs_init(large: Path) -> None:
    program = """
import large
before = large.Client
print(json.dumps([large.EVERYTHING[0] is before, large.types.Image.__name__, hasattr(large, "missing")]))
"""

    assert executed(large, program) == [True, "Image", False]


def test_library_that_is_imported_already_is_not_deferred(large: Path) -> None:
    program = """
import email
defer("email", "message")
import email.mime
print(json.dumps(type(email.mime).__name__))
"""

    assert executed(large, program) == "module"


def test_anthropics_sdk_has_the_layout_that_a_deferred_import_needs() -> None:
    """Its classes are in the modules that the adapter names: no `__init__` with 2,900 modules runs."""
    program = """
import json, sys
import banksman.agent.providers.anthropic
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic, DefaultAioHttpClient, Timeout
print(json.dumps(sum(name.partition(".")[0] == "anthropic" for name in sys.modules)))
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < MOST_SDK_MODULES
