"""The repository of a new conversation, the toolchain of an assistant and the registries of a tenant."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from playwright.async_api import expect

from tests.e2e.assistant_scenes import assistants
from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.e2e.test_rules import POLICY
from tests.support.browser import Look, opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

ALLOWED = "https://git.example/acme/*"
OPTIONS = {"toolchains": ["go", "node-22"], "repositories": [ALLOWED], "registries": ["pypi.example"]}
SOURCE: dict[str, Any] = {"repository": "https://git.example/acme/crane.git", "branch": "work", "depth": 5}
CREATED = {"conversation_id": "c1", "title": "", "status": "idle", "source": SOURCE}


async def test_a_conversation_starts_from_a_repository(stage: Stage) -> None:
    """What the server refuses is said at its field, and the typed values stay."""
    stage.resources |= {"context/workspace-options": OPTIONS, "POST context/conversations": CREATED}
    refused = {"code": "bad_request", "message": f"expected {ALLOWED}", "field": "source.repository"}
    stage.failures["POST context/conversations"] = (400, refused)
    async with opened(stage.url) as page:
        await page.get_by_role("button", name="Start from a repository").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_text(ALLOWED)).to_be_visible()
        await dialog.get_by_label("Address").fill("https://other.example/a.git")
        await dialog.get_by_label("Branch").fill("work")
        await dialog.get_by_label("Commits").fill("5")
        await dialog.get_by_role("button", name="Begin").click()
        await expect(dialog.get_by_role("alert")).to_have_text(f"expected {ALLOWED}")
        await expect(dialog.get_by_label("Address")).to_have_attribute("aria-invalid", "true")
        stage.failures.clear()
        await dialog.get_by_label("Address").fill(SOURCE["repository"])
        await dialog.get_by_role("button", name="Begin").click()
        await expect(page.get_by_role("log").get_by_text("branch work")).to_be_visible()
        assert page.url.endswith("#/c/c1")
    assert json.loads(stage.uploads["context/conversations"]) == {"source": SOURCE}


async def test_a_conversation_starts_from_an_archive_of_this_device(stage: Stage) -> None:
    """A refused archive leaves no conversation behind, and the form stays."""
    created = {**CREATED, "source": None}
    stage.resources |= {"context/workspace-options": OPTIONS, "POST context/conversations": created}
    unpack = "context/conversations/c1/unpack"
    reason = "path is refused: it was not unpacked"
    stage.failures[f"POST {unpack}"] = (400, {"code": "bad_request", "message": reason, "field": "path"})
    archive = {"name": "crane.zip", "mimeType": "application/zip", "buffer": b"PK"}
    async with opened(stage.url, look=Look(width=390)) as page:
        await page.get_by_role("button", name="Start from a repository").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("An archive from this device").set_input_files(cast(Any, archive))
        await expect(dialog.get_by_label("Address")).to_be_disabled()
        await dialog.get_by_role("button", name="Begin").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("it was not unpacked")
        assert stage.uploads["context/conversations/c1"] == b"", "the conversation is deleted"
        stage.failures.clear()
        await dialog.get_by_role("button", name="Begin").click()
        await expect(dialog).to_have_count(0)
        assert page.url.endswith("#/c/c1")
    assert json.loads(stage.uploads[unpack]) == {"path": "crane.zip"}
    assert stage.uploads["context/conversations/c1/files/crane.zip"] == b"PK"


async def test_without_an_allowed_repository_the_form_says_so(stage: Stage) -> None:
    stage.resources["context/workspace-options"] = {"toolchains": [], "repositories": [], "registries": []}
    async with opened(stage.url) as page:
        await page.get_by_role("button", name="Start from a repository").click()
        await expect(page.get_by_text("The operator allows no repository yet.")).to_be_visible()


async def test_an_assistant_gets_a_toolchain_that_the_operator_offers(stage: Stage) -> None:
    assistants(stage)
    stage.resources["context/workspace-options"] = OPTIONS
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/assistants/cranes")
        choice = page.get_by_label("Programs for commands")
        await choice.select_option("node-22")
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_text("The assistant is saved.")).to_be_visible()
    assert json.loads(stage.uploads["context/assistants/cranes"])["tools"]["toolchain"] == "node-22"


async def test_an_administrator_permits_a_registry(stage: Stage) -> None:
    stage.resources |= {
        "context/workspace-options": OPTIONS,
        "context/policy": {**POLICY, "registries": []},
        "PUT context/policy": {**POLICY, "revision": 4},
    }
    async with opened(stage.url) as page:
        await open_view(page, "Rules")
        form = page.get_by_role("group", name="Package registries")
        await expect(form.get_by_text("pypi.example")).to_be_visible()
        await form.get_by_role("button", name="Add a registry").click()
        await form.get_by_label("Address of the registry").fill("https://pypi.example/simple")
        await form.get_by_label("Further hosts").fill("files.pypi.example, cdn.example:8443")
        await form.get_by_label("Only for these assistants").fill("inspector")
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_text("Rules saved")).to_be_visible()
    assert json.loads(stage.uploads["context/policy"])["registries"] == [
        {
            "kind": "pypi",
            "url": "https://pypi.example/simple",
            "hosts": ["files.pypi.example", "cdn.example:8443"],
            "assistants": ["inspector"],
        }
    ]


async def test_users_without_the_right_read_the_registries_only(stage: Stage) -> None:
    stage.rights = ("chat", "approve")
    stage.resources |= {"context/workspace-options": OPTIONS, "context/policy": POLICY}
    async with opened(stage.url) as page:
        await open_view(page, "Rules")
        await expect(page.get_by_label("Address of the registry")).to_be_disabled()
