"""The first minutes: a key and a model, examples, an invitation, and an assistant with a skill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.navigating import open_view
from tests.e2e.tasks.people import (
    GERMAN_PHONE,
    PHONE,
    WIDE,
    WIDE_DARK,
    Look,
    Office,
    ask,
    ended,
    seen,
)
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]


@seen(WIDE_DARK)
async def test_a_key_is_entered_and_a_model_is_chosen_and_named_in_the_composer(
    office: Office, look: Look
) -> None:
    """Task 2: without a restart."""
    office.play(ScriptedReply(text="From the new server."), name="entered")
    async with office.person(look) as page:
        await open_view(page, "Models")
        await page.get_by_role("button", name="Connect a server").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Vendor").select_option("")
        await dialog.get_by_label("Name").fill("harbour")
        await dialog.get_by_label("Address").fill(f"{office.model.url}/v1")
        await dialog.get_by_label("Key").fill("key-of-the-harbour")
        await dialog.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_role("cell", name="harbour", exact=True)).to_be_visible()
        await page.goto(f"{office.system.url}/#/")
        await page.get_by_role("button", name=re.compile("^Model of your next messages")).click()
        await page.get_by_role("searchbox", name="Find a model").fill("harbour:scripted/entered")
        # As it was typed, until the list has arrived and contains it.
        await dialog.get_by_role("button", name=re.compile("entered")).click()
        chosen = page.get_by_role("button", name="Model of your next messages: harbour:scripted/entered")
        await expect(chosen).to_contain_text("scripted/entered")
        await ask(page, "Hello")
        await expect(page.get_by_text("From the new server.")).to_be_visible()


@seen(PHONE, GERMAN_PHONE)
async def test_a_new_person_sees_what_can_be_done_here(office: Office, look: Look) -> None:
    """The examples fit the tools and workflows of the assistant; one fills the message box."""
    async with office.http() as http:
        made = await http.post(
            "/context/assistants", json={"name": f"Talker {look.language}", "tools": {"enabled": False}}
        )
    group, files, drawing, begin = {
        "en-US": (
            "What can I do here? Examples",
            "List the files",
            "Draw a diagram",
            "Start a conversation",
        ),
        "de-DE": (
            "Was kann ich hier tun? Beispiele",
            "Dateien auflisten",
            "Ein Diagramm zeichnen",
            "Unterhaltung beginnen",
        ),
    }[look.language]
    async with office.person(look) as page:
        examples = page.get_by_role("group", name=group)
        await expect(
            examples.get_by_role("button", name=re.compile("Create project|Projekt"))
        ).to_be_visible()
        await examples.get_by_role("button", name=files).click()
        await expect(page.locator("#composer")).to_have_value(re.compile("ls -la"))
        await page.goto(f"{office.system.url}/#/assistants")
        row = page.get_by_role("main").get_by_role("listitem").filter(has_text=made.json()["name"])
        await row.get_by_role("button", name=begin).click()
        await expect(examples.get_by_role("button", name=drawing)).to_be_visible()
        await expect(examples.get_by_role("button", name=files)).to_have_count(0)


@seen(WIDE)
async def test_a_colleague_is_invited_by_a_link_and_reads_a_shared_conversation(
    office: Office, look: Look
) -> None:
    """Task 29: the link signs in once; the shared link shows the conversation without controls."""
    conversation = await office.conversation(ScriptedReply(text="It is 40 t."))
    async with office.at(conversation, look) as page:
        await ask(page, "How heavy is it?")
        await ended(page)
        await open_view(page, "People")
        await page.get_by_role("button", name="Invite a person").click()
        await page.get_by_label("Name or e-mail address", exact=True).fill("linus")
        await page.get_by_role("button", name="Create the link").click()
        link = await page.get_by_text(re.compile("#/invitation/")).inner_text()
    async with office.person(look, token="none") as guest:
        await guest.goto(link.strip())
        await expect(guest.get_by_role("button", name="Account: linus")).to_be_visible()
        await guest.goto(f"{office.system.url}/#/read/{conversation}")
        await expect(guest.get_by_text("It is 40 t.")).to_be_visible()
        await expect(guest.get_by_role("textbox", name="Message")).to_be_hidden()


@seen(WIDE_DARK)
async def test_an_assistant_gets_a_skill_and_is_used(office: Office, look: Look, tmp_path: Path) -> None:
    """Task 28: it is chosen for a conversation by its name."""
    folder = tmp_path / "loads"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: loads\ndescription: Compute loads.\n---\nAdd them.\n")
    model = office.play(ScriptedReply(text="With the skill."))
    async with office.http() as http:
        made = await http.post(
            "/context/assistants", json={"name": "Cranes", "model": model, "tools": {"enabled": True}}
        )
    async with office.person(look) as page:
        await page.goto(f"{office.system.url}/#/assistants/{made.json()['id']}")
        await page.get_by_label("Add a skill").set_input_files(folder)
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text(re.compile("Saved|saved")).first).to_be_visible()
        await page.goto(f"{office.system.url}/#/assistants")
        row = page.get_by_role("main").get_by_role("listitem").filter(has_text="Cranes")
        await row.get_by_role("button", name="Start a conversation").click()
        await expect(page.get_by_text(re.compile("begins with the assistant"))).to_be_visible()
        await ask(page, "Compute.")
        await expect(page.get_by_text("With the skill.")).to_be_visible()
    async with office.http() as http:
        stored = (await http.get(f"/context/assistants/{made.json()['id']}")).json()
    assert [file["path"] for file in stored["files"]] == [".claude/skills/loads/SKILL.md"]
