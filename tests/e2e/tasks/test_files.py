"""Files: what a command changed, uploads and downloads, a long command, and documents for the model."""

from __future__ import annotations

import io
import zipfile

import pillow_heif
import pytest
from PIL import Image
from playwright.async_api import FilePayload, expect

from tests.e2e.tasks.people import (
    GERMAN_PHONE,
    PHONE,
    PHONE_DARK,
    WIDE,
    WIDE_DARK,
    Look,
    Office,
    ask,
    ended,
    seen,
)
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


@seen(WIDE_DARK, GERMAN_PHONE)
async def test_every_file_that_a_command_changed_is_found_with_its_difference(
    office: Office, look: Look
) -> None:
    """Task 21: changed, created and deleted by the command itself."""
    command = "sed -i s/40/32/ load.py; mkdir -p out; echo new > out/new.txt; rm old.txt"
    conversation = await office.conversation(bash(command), DONE)
    async with office.http() as http:
        for name, text in (("load.py", "mass = 40\n"), ("old.txt", "old\n")):
            stored = await http.put(f"/context/conversations/{conversation}/files/{name}", content=text)
            assert stored.is_success
    approve, files, changes = {
        "en-US": ("Approve", "Files of the workspace", "Changes"),
        "de-DE": ("Freigeben", "Dateien des Arbeitsbereichs", "Änderungen"),
    }[look.language]
    async with office.at(conversation, look) as page:
        await ask(page, "Change it.")
        await page.get_by_role("button", name=approve, exact=True).click()
        await ended(page)
        await page.get_by_title(files).click()
        await page.get_by_role("button", name=changes).click()
        listed = page.locator(".file-changes code")
        await expect(listed).to_have_text(["load.py", "old.txt", "out/new.txt"])
        changed = page.locator(".file-changes details").filter(has_text="load.py")
        await changed.locator("summary").press("Enter")
        await expect(changed.locator(".diff")).to_contain_text("mass = 32")
        await expect(changed.locator(".diff")).to_contain_text("mass = 40")


@seen(WIDE)
async def test_picked_dropped_and_pasted_files_reach_the_workspace_and_all_are_downloaded(
    office: Office, look: Look
) -> None:
    """Task 22."""
    conversation = await office.conversation(DONE)
    async with office.at(conversation, look, bypass_csp=True) as page:
        picked: FilePayload = {"name": "north.txt", "mimeType": "text/plain", "buffer": b"40 t"}
        await page.locator(".composer input[type=file]").set_input_files([picked])
        await page.evaluate(PASTE)
        await page.evaluate(DROP)
        await expect(page.locator(".attached-file")).to_have_count(3)
        await ask(page, "Keep these.")
        await ended(page)
        await page.get_by_role("button", name="Files", exact=True).click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download all files").click()
        with zipfile.ZipFile(await (await download.value).path()) as archive:
            # Smaller copies for the model are in a folder of their own.
            names = sorted(name for name in archive.namelist() if not name.startswith("."))
            assert archive.read("uploads/north.txt") == b"40 t"
    assert names == ["uploads/image.png", "uploads/north.txt", "uploads/south.txt"]


@seen(PHONE)
async def test_the_output_of_a_long_command_is_followed_and_the_command_is_stopped(
    office: Office, look: Look
) -> None:
    """Task 23."""
    command = "echo begun; while true; do sleep 0.2; echo working; done"
    conversation = await office.conversation(bash(command), DONE)
    async with office.at(conversation, look) as page:
        await ask(page, "Work.")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await page.get_by_role("button", name="Files of the workspace").click()
        await page.get_by_role("button", name="Terminal").click()
        terminal = page.get_by_role("log", name="Commands and their output")
        await expect(terminal).to_contain_text("working")
        await page.get_by_role("complementary", name="Files").get_by_role("button", name="Stop").click()
        await page.get_by_role("button", name="Close files").click()
        await ended(page, "cancelled")


@seen(PHONE_DARK)
async def test_a_document_a_screenshot_and_a_photo_of_a_phone_reach_the_model(
    office: Office, look: Look
) -> None:
    """Task 24: the photo is shown to the model in a format that it reads."""
    model = office.play(ScriptedReply(text="I see them."))
    conversation = await office.conversation(model=model)
    files: list[FilePayload] = [
        {"name": "paper.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7\n" + b"% text\n" * 50},
        {"name": "screen.png", "mimeType": "image/png", "buffer": picture("PNG")},
        {"name": "photo.heic", "mimeType": "image/heic", "buffer": picture("HEIF")},
    ]
    async with office.at(conversation, look) as page:
        await page.locator(".composer input[type=file]").set_input_files(files)
        await expect(page.locator(".attached-file")).to_have_count(3)
        await ask(page, "What do you see?")
        await expect(page.get_by_text("I see them.")).to_be_visible()
        await expect(page.get_by_role("button", name="uploads/photo.heic")).to_be_visible()
    content = str(office.requests(model)[0]["messages"][-1]["content"])
    assert "uploads/paper.pdf" in content
    assert content.count("data:image/") == 2 and "data:image/heic" not in content
