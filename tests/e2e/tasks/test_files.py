"""Files: what a command changed, uploads and downloads, a long command, and documents for the model."""

from __future__ import annotations

import io
import re
import zipfile

import pillow_heif
import pytest
from PIL import Image
from playwright.async_api import FilePayload, expect

from tests.e2e.tasks.people import WIDE, Office, Person, Way, ways
from tests.e2e.test_attachments import DROP, PASTE
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
DONE = ScriptedReply(text="Done.")


def picture(form: str) -> bytes:
    pillow_heif.register_heif_opener()
    output = io.BytesIO()
    Image.linear_gradient("L").resize((600, 400)).convert("RGB").save(output, form)
    return output.getvalue()


async def open_files(me: Person) -> None:
    await me.press(me.page.get_by_title(me.t("header.filesTitle")))


@ways()
async def test_every_file_that_a_command_changed_is_found_with_its_difference(
    office: Office, way: Way
) -> None:
    """Task 21: changed, created and deleted by the command itself."""
    command = "sed -i s/40/32/ load.py; mkdir -p out; echo new > out/new.txt; rm old.txt"
    conversation = await office.conversation(bash(command), DONE)
    async with office.http() as http:
        for name, text in (("load.py", "mass = 40\n"), ("old.txt", "old\n")):
            stored = await http.put(f"/context/conversations/{conversation}/files/{name}", content=text)
            assert stored.is_success
    async with office.at(conversation, way) as me:
        await me.ask("Change it.")
        await me.press(me.button("approval.approve", me.card))
        await me.ended()
        await open_files(me)
        await me.press(me.button("files.tab.changes"))
        listed = me.page.locator(".file-changes code")
        await expect(listed).to_have_text(["load.py", "old.txt", "out/new.txt"])
        changed = me.page.locator(".file-changes details").filter(has_text="load.py")
        await me.press(changed.locator("summary"))
        await expect(changed.locator(".diff")).to_contain_text("mass = 32")
        await expect(changed.locator(".diff")).to_contain_text("mass = 40")


@ways()
async def test_picked_dropped_and_pasted_files_reach_the_workspace_and_all_are_downloaded(
    office: Office, way: Way
) -> None:
    """Task 22: without a pointer they are picked and pasted."""
    conversation = await office.conversation(DONE)
    async with office.at(conversation, way, bypass_csp=True) as me:
        picked: FilePayload = {"name": "north.txt", "mimeType": "text/plain", "buffer": b"40 t"}
        await me.pick(me.button("attach.add"), [picked])
        await me.page.evaluate(PASTE)
        if not way.keys:
            await me.page.evaluate(DROP)
        names = ["uploads/image.png", "uploads/north.txt", *([] if way.keys else ["uploads/south.txt"])]
        await expect(me.page.locator(".attached-file")).to_have_count(len(names))
        await me.ask("Keep these.")
        await me.ended()
        await open_files(me)
        async with me.page.expect_download() as download:
            await me.press(me.button("files.downloadAll"))
        with zipfile.ZipFile(await (await download.value).path()) as archive:
            # Smaller copies for the model are in a folder of their own.
            kept = sorted(name for name in archive.namelist() if not name.startswith("."))
            assert archive.read("uploads/north.txt") == b"40 t"
    assert kept == names


@ways()
async def test_the_output_of_a_long_command_is_followed_and_the_command_is_stopped(
    office: Office, way: Way
) -> None:
    """Task 23."""
    command = "echo be''gun; while true; do sleep 0.2; echo work''ing; done"
    conversation = await office.conversation(bash(command), DONE)
    async with office.at(conversation, way) as me:
        await me.ask("Work.")
        await me.press(me.button("approval.approve", me.card))
        await expect(me.page.locator(".tool-live")).to_contain_text("working")
        await open_files(me)
        await me.press(me.button("files.tab.terminal"))
        terminal = me.page.get_by_role("log", name=me.t("terminal.label"))
        await expect(terminal).to_contain_text("working")
        panel = me.page.get_by_role("complementary", name=me.t("files.tab.files"))
        await me.press(me.button("timeline.stop", panel))
        await me.press(me.button("files.close"))
        await me.ended("cancelled")


@ways(WIDE)
async def test_a_tab_that_is_opened_during_a_command_shows_its_output(office: Office, way: Way) -> None:
    """R36: what a command prints from then on, and all of it when the command has ended."""
    command = "echo be''gun; until [ -e go ]; do sleep 0.3; echo went ''on; done"
    conversation = await office.conversation(bash(command), DONE)
    async with office.at(conversation, way) as me, office.http() as http:
        await me.ask("Wait.")
        await me.press(me.button("approval.approve", me.card))
        await expect(me.page.locator(".tool-live")).to_contain_text("begun")
        async with office.at(conversation, way) as second:
            await expect(second.page.locator(".tool-live")).to_contain_text("went on")
            await http.put(f"/context/conversations/{conversation}/files/go", content="")
            for tab in (me, second):
                await tab.ended()
                await tab.press(tab.page.get_by_role("button", name=tab.t("timeline.calls", 1, tools="bash")))
                await expect(tab.page.locator(".tool-live")).to_have_text(re.compile("^begun(\nwent on)+$"))


@ways()
async def test_a_document_a_screenshot_and_a_photo_of_a_phone_reach_the_model(
    office: Office, way: Way
) -> None:
    """Task 24: the photo is shown to the model in a format that it reads."""
    model = office.play(ScriptedReply(text="I see them."))
    conversation = await office.conversation(model=model)
    files: list[FilePayload] = [
        {"name": "paper.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7\n" + b"% text\n" * 50},
        {"name": "screen.png", "mimeType": "image/png", "buffer": picture("PNG")},
        {"name": "photo.heic", "mimeType": "image/heic", "buffer": picture("HEIF")},
    ]
    async with office.at(conversation, way) as me:
        await me.pick(me.button("attach.add"), files)
        await expect(me.page.locator(".attached-file")).to_have_count(3)
        await me.ask("What do you see?")
        await expect(me.page.get_by_text("I see them.")).to_be_visible()
        await expect(me.page.get_by_role("button", name="uploads/photo.heic")).to_be_visible()
    content = str(office.requests(model)[0]["messages"][-1]["content"])
    assert "uploads/paper.pdf" in content
    assert content.count("data:image/") == 2 and "data:image/heic" not in content
