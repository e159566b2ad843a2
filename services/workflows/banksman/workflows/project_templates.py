"""The files that the workflow `create_project` writes, from `project_templates.toml`."""

from __future__ import annotations

import html
import tomllib
from functools import cache
from keyword import iskeyword
from pathlib import Path

Files = dict[str, str]
"""Path below the project's folder to content."""


def files_of(name: str, template: str, description: str) -> Files:
    files = {"README.md": _readme(name, description), **_filled(name, template, description)}
    return {f"{name}/{path}": content for path, content in files.items()}


def _readme(name: str, description: str) -> str:
    return f"# {name}\n\n{description.strip()}\n" if description.strip() else f"# {name}\n"


def _filled(name: str, template: str, description: str) -> Files:
    package = name.replace("-", "_")
    values = {
        "__NAME__": name,
        "__PACKAGE__": f"{package}_app" if iskeyword(package) else package,
        "__DESCRIPTION__": html.escape(description.strip()),
    }

    def filled(text: str) -> str:
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    return {filled(path): filled(content) for path, content in _templates()[template].items()}


@cache
def _templates() -> dict[str, Files]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
