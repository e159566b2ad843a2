"""The path of a request in `docs/architecture.md` names functions that exist."""

from __future__ import annotations

import re

from tests.support.definitions import defined_in
from tests.support.paths import ROOT

LINE = re.compile(r"^- `(?P<file>[\w/.-]+\.py)`: (?P<functions>.+)$", re.MULTILINE)
LAST = re.compile(r"`(?P<function>\w+)` in\n`(?P<file>[\w/.-]+\.py)`")


def test_request_path_names_existing_functions_and_counts_them() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The path of a request\n")[2].partition("\n## ")[0]
    path = [
        (found["file"], name)
        for found in LINE.finditer(section)
        for name in re.findall(r"`(\w+)`", found["functions"])
    ]
    path += [(found["file"], found["function"]) for found in LAST.finditer(section)]

    assert [step for step in path if step[1] not in defined_in(step[0])] == []
    files, functions = len({file for file, _ in path}), len(set(path))
    assert f"{files} files and {functions} functions" in section
