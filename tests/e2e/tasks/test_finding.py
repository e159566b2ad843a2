"""Finding: labels, search, export and import, the palette, hard texts, and twelve conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.e2e.tasks.people import GERMAN, PHONE, PHONE_DARK, WIDE, WIDE_DARK, Look, Office, ask, ended, seen
from tests.e2e.test_navigation import rows_in_view
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]


async def open_palette(page: Page) -> None:
    """Open it and wait for its field: its program is loaded at its first use."""
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog").get_by_role("combobox")).to_be_focused()


@seen(GERMAN)
async def test_conversations_are_labelled_and_listed_by_label(office: Office, look: Look) -> None:
    """By the menu of a conversation; the palette and the list choose a label."""
    for title in ("Nordkran", "Südkran"):
        await office.conversation(ScriptedReply(text="Ja."), title=title)
    async with office.person(look) as page:
        await page.get_by_role("button", name="Aktionen für Nordkran").click()
        await page.get_by_role("menuitem", name="Etiketten").click()
        await page.get_by_label("Etiketten, durch Kommas getrennt").fill("Hafen, Last")
        await page.get_by_role("dialog").get_by_role("button", name="Speichern").click()
        row = page.locator(".conversation", has_text="Nordkran")
        await expect(row.locator(".conversation-label")).to_have_text(["Hafen", "Last"])
        await page.get_by_role("combobox", name="Etikett").select_option("Hafen")
        await expect(page.locator(".conversation")).to_have_count(1)
        await page.reload()
        await expect(page.locator(".conversation", has_text="Südkran")).to_be_visible()
        await open_palette(page)
        await page.keyboard.type("Etikett: Last")
        await expect(page.get_by_role("option", name="Etikett: Last")).to_be_visible()
        await page.keyboard.press("Enter")
        await expect(page.locator(".conversation")).to_have_count(1)


@seen(PHONE)
async def test_a_search_lands_at_the_hit(office: Office, look: Look) -> None:
    """Task 30: a message far above the end of a long conversation."""
    long = "Checked.\n\n" * 30
    replies = [ScriptedReply(text=f"The quay number {number} is safe.\n\n{long}") for number in range(6)]
    conversation = await office.conversation(*replies)
    async with office.at(conversation, look) as page:
        for count in range(1, 7):
            await ask(page, "Next?")
            await ended(page, count=count)
        await page.goto(f"{office.system.url}/#/approvals")
        await open_palette(page)
        await page.keyboard.type("quay number 1 is")
        await page.get_by_role("option").filter(has_text="quay number 1 is").click()
        hit = page.locator(".turn.assistant").filter(has_text="quay number 1 is")
        await expect(hit).to_be_in_viewport()


@seen(WIDE_DARK)
async def test_a_conversation_is_exported_and_imported(office: Office, look: Look, tmp_path: Path) -> None:
    """Task 31: its messages, and its title."""
    conversation = await office.conversation(ScriptedReply(text="It is **40 t**."), title="Cranes")
    async with office.at(conversation, look) as page:
        await ask(page, "How heavy?")
        await ended(page)
        await page.get_by_role("button", name="Conversation actions").click()
        async with page.expect_download() as download:
            await page.get_by_role("menuitem", name="Export as JSON").click()
        file = tmp_path / "cranes.json"
        await (await download.value).save_as(file)
        await page.locator("#import-file").set_input_files(file)
        await page.wait_for_url(lambda url: "#/c/" in url and conversation not in url)
        await expect(page.locator(".bubble")).to_have_text("How heavy?")
        await expect(page.locator(".prose strong")).to_have_text("40 t")
        await expect(page.get_by_role("heading", name="Cranes", level=1)).to_be_visible()
    assert json.loads(file.read_text())["conversation"]["title"] == "Cranes"


@seen(WIDE, PHONE_DARK)
async def test_everything_is_done_from_the_palette(office: Office, look: Look) -> None:
    """Task 32: a new conversation, its name, its files, a view, the theme, without a pointer."""
    conversation = await office.conversation(ScriptedReply(text="Yes."), title="Before")

    async with office.at(conversation, look) as page:

        async def command(text: str) -> None:
            await open_palette(page)
            await page.keyboard.type(text)
            found = page.get_by_role("dialog").get_by_role("option")
            await expect(found.first).to_contain_text(text.split(":")[0])
            await page.keyboard.press("Enter")

        await expect(page.get_by_role("heading", name="Before", level=1)).to_be_visible()
        await command("This conversation: Rename")
        await expect(page.get_by_role("textbox", name="Title")).to_be_focused()
        await page.keyboard.press("Control+a")
        await page.keyboard.type("After")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="After", level=1)).to_be_visible()
        await command("Files of the workspace")
        await expect(page.get_by_role("complementary", name="Files")).to_be_visible()
        await page.keyboard.press("Escape")
        await command("Theme: Dark")
        await expect(page.locator("html")).to_have_css("color-scheme", "dark")
        await command("Schedules")
        await expect(page.get_by_role("heading", name="Schedules", level=1)).to_be_focused()
        await command("New conversation")
        await expect(page.get_by_role("heading", name="New conversation", level=1)).to_be_visible()


@seen(PHONE, WIDE_DARK)
async def test_texts_that_are_hard_to_show_fit_the_window(office: Office, look: Look) -> None:
    """Task 33: right-to-left text, a table with numbers, and a line of a megabyte."""
    table = "| crane | load |\n|---|---:|\n| north | 1 234 567.89 kg |\n"
    replies = ("הרמה בטיחה.", table, "x" * 1_000_000)
    conversation = await office.conversation(*[ScriptedReply(text=text) for text in replies])
    async with office.at(conversation, look) as page:
        for count in (1, 2, 3):
            await ask(page, "Next?")
            await ended(page, count=count)
        hebrew = page.locator(".turn.assistant p").first
        await expect(hebrew).to_have_css("direction", "rtl")
        number = page.get_by_role("cell", name="1 234 567.89 kg")
        box = await number.bounding_box()
        assert box is not None and box["height"] < 60
        await expect(page.locator("#composer")).to_be_editable()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@seen(WIDE)
async def test_twelve_conversations_are_in_view(office: Office, look: Look) -> None:
    """Task 35: at 1280 by 800, below what waits."""
    async with office.http() as http:
        for number in range(14):
            await http.post("/context/conversations", json={"title": f"Crane {number}"})
    async with office.person(look) as page:
        await page.set_viewport_size({"width": 1280, "height": 800})
        await expect(page.locator(".conversation").nth(13)).to_be_attached()
        assert await rows_in_view(page) >= 12
