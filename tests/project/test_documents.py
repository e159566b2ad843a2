"""What the documents point at is there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
COMMAND = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_command_that_a_document_names_is_listed_by_make_help(document: Path) -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    named = set(COMMAND.findall(document.read_text()))

    assert named <= set(COMMAND.findall(listed.replace("  make", "`make"))), named
