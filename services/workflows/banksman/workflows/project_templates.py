"""The files of the projects that the workflow `create_project` writes."""

from __future__ import annotations

import html
from collections.abc import Callable
from keyword import iskeyword

Files = dict[str, str]
"""Path below the project's folder to content."""


def files_of(name: str, template: str, description: str) -> Files:
    files = {"README.md": _readme(name, description), **TEMPLATES[template](name, description)}
    return {f"{name}/{path}": content for path, content in files.items()}


def _readme(name: str, description: str) -> str:
    return f"# {name}\n\n{description.strip()}\n" if description.strip() else f"# {name}\n"


def _python(name: str, _description: str) -> Files:
    package = name.replace("-", "_")
    if iskeyword(package):
        package += "_app"
    return {
        "pyproject.toml": _PYPROJECT.format(name=name, package=package),
        f"src/{package}/__init__.py": "",
        f"src/{package}/greeting.py": _GREETING,
        "tests/test_greeting.py": _GREETING_TEST.format(package=package, name=name),
    }


_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["src/{package}"]

[tool.pytest.ini_options]
pythonpath = ["src"]
"""

_GREETING = '''"""The greeting of the project."""


def greeting(name: str) -> str:
    """Return a greeting for a name."""
    return f"Hello, {name}!"
'''

_GREETING_TEST = """from {package}.greeting import greeting


def test_it_greets_by_name() -> None:
    assert greeting("{name}") == "Hello, {name}!"
"""


def _web(name: str, description: str) -> Files:
    return {
        "src/index.html": _INDEX.format(name=name, description=html.escape(description.strip())),
        "src/style.css": _STYLE,
        "src/greeting.mjs": _GREETING_MJS,
        "tests/greeting.test.mjs": _GREETING_TEST_MJS,
    }


_INDEX = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>{name}</title>
    <link rel="stylesheet" href="style.css">
  </head>
  <body>
    <main>
      <h1>{name}</h1>
      <p>{description}</p>
      <p id="greeting"></p>
    </main>
    <script type="module">
      import {{ greeting }} from './greeting.mjs';
      document.querySelector('#greeting').textContent = greeting('{name}');
    </script>
  </body>
</html>
"""

_STYLE = """:root {
  color-scheme: light dark;
  font-family: system-ui, sans-serif;
}

main {
  margin: 4rem auto;
  max-width: 40rem;
  padding: 0 1rem;
}
"""

_GREETING_MJS = """/** Return a greeting for a name. */
export function greeting(name) {
  return `Hello, ${name}!`;
}
"""

_GREETING_TEST_MJS = """import assert from 'node:assert/strict';
import { test } from 'node:test';

import { greeting } from '../src/greeting.mjs';

test('it greets by name', () => {
  assert.equal(greeting('you'), 'Hello, you!');
});
"""


def _empty(_name: str, _description: str) -> Files:
    return {"src/.gitkeep": "", "tests/.gitkeep": ""}


TEMPLATES: dict[str, Callable[[str, str], Files]] = {"python": _python, "web": _web, "empty": _empty}
"""The files that each template adds to the README, by the template's name."""
