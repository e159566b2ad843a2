"""The targets of links and commands in documents exist."""

import re
import subprocess
from pathlib import Path

import pytest
from tools.check_tree import files

from tests.support.paths import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
EXAMPLE = re.compile(r"^.*\b(?:python|node) examples/.*$", re.MULTILINE)
DECISION = re.compile(r"(?:docs/decisions/|\bdecision )(\d+)\b")
COMMAND = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_has_a_target(document: Path) -> None:
    links = LINK.findall(document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_heading_has_one(document: Path) -> None:
    links = ANCHOR.findall(document.read_text())
    targets = [(document.parent / file if file else document, anchor) for file, anchor in links]

    assert [(str(path), anchor) for path, anchor in targets if anchor not in _anchors(path)] == []


def _anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as the viewers of repositories make them."""
    titles = [title.lower().replace("`", "") for title in HEADING.findall(document.read_text())]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_help_lists_every_make_command_in_a_document(document: Path) -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    named = set(COMMAND.findall(document.read_text()))

    assert named <= set(COMMAND.findall(listed.replace("  make", "`make"))), named


def test_index_lists_every_decision_and_code_names_none_that_is_missing() -> None:
    folder = ROOT / "docs/decisions"
    records = {path.name for path in folder.glob("0*.md")}
    sources = [path for path in files(ROOT) if path.suffix in (".py", ".sh", ".mjs", ".yaml", ".toml")]
    named = {(path, number) for path in sources for number in DECISION.findall(_text(path))}

    assert set(LINK.findall((folder / "README.md").read_text())) == records
    assert [
        (path, number) for path, number in named if f"{int(number):04}" not in {n[:4] for n in records}
    ] == []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def test_no_command_of_an_example_has_backquotes_that_a_shell_executes() -> None:
    """Between double quotes, a shell replaces them by the output of the command in them."""
    sources = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples/node").glob("*.mjs")]
    commands = [line for source in sources for line in EXAMPLE.findall(source.read_text())]

    assert len(commands) >= len(sources) - 2
    assert [line for line in commands if re.search(r'"[^"]*`', line)] == []
