"""Finding: labels, search, export and import, the palette, hard texts, and twelve conversations."""

from __future__ import annotations

import json
import zipfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.scenes import PIXEL
from tests.e2e.tasks.people import PHONE, WIDE, Office, Person, Way, ways
from tests.e2e.test_navigation import rows_in_view
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = [pytest.mark.usefixtures("browser"), pytest.mark.timeout(240)]
PICTURE = b64decode(PIXEL)


@ways(WIDE)
async def test_conversations_are_labelled_and_listed_by_label(office: Office, way: Way) -> None:
    """By the menu of a conversation; the palette and the list choose a label."""
    for title in ("North crane", "South crane"):
        await office.conversation(ScriptedReply(text="Yes."), title=title)
    async with office.person(way) as me:
        await me.press(me.button("sidebar.actions", title="North crane"))
        await me.press(me.page.get_by_role("menuitem", name=me.t("conversation.labels")))
        await me.write(me.dialog.get_by_role("textbox"), "Harbour, Load")
        await me.press(me.button("app.save", me.dialog))
        row = me.page.locator(".conversation", has_text="North crane")
        await expect(row.locator(".conversation-label")).to_have_text(["Harbour", "Load"])
        await me.choose(me.page.get_by_role("combobox", name=me.t("sidebar.label.choose")), "Harbour")
        await expect(me.page.locator(".conversation")).to_have_count(1)
        await me.page.reload()
        await expect(me.page.locator(".conversation", has_text="South crane")).to_be_visible()
        await me.command(me.t("palette.label") + " Load")
        await expect(me.page.locator(".conversation")).to_have_count(1)


@ways()
async def test_a_search_lands_at_the_hit(office: Office, way: Way) -> None:
    """Task 30: a message far above the end of a long conversation."""
    word = f"quay{way.id.replace('-', '')}"
    long = "Checked.\n\n" * 30
    replies = [ScriptedReply(text=f"The {word} number {number} is safe.\n\n{long}") for number in range(6)]
    conversation = await office.conversation(*replies)
    async with office.at(conversation, way) as me:
        for count in range(1, 7):
            await me.ask("Next?")
            await me.ended(count=count)
        await me.view("inbox.title")
        await me.command(f"{word} number 1 is")
        hit = me.page.locator(".turn.assistant").filter(has_text=f"{word} number 1 is")
        await expect(hit.get_by_text(f"{word} number 1 is")).to_be_in_viewport()


@ways()
async def test_a_conversation_is_exported_and_imported_without_loss(
    office: Office, way: Way, tmp_path: Path
) -> None:
    """Task 31: its messages, its calls and results, and its title; exported again, it is the same."""
    call = ScriptedCall(name="list_files", arguments={})
    conversation = await office.conversation(
        ScriptedReply(tool_calls=(call,), reasoning="I look."),
        ScriptedReply(text="It is **40 t**."),
        title=f"Cranes {way.id}",
    )
    async with office.at(conversation, way) as me:
        await me.ask("How heavy?")
        await me.ended()
        first = await exported(me, tmp_path / "first.json")
        await me.page.locator("#import-file").set_input_files(first)
        await me.page.wait_for_url(lambda url: "#/c/" in url and conversation not in url)
        await expect(me.page.locator(".bubble")).to_have_text("How heavy?")
        await expect(me.page.locator(".prose strong")).to_have_text("40 t")
        await expect(me.page.get_by_role("heading", name=f"Cranes {way.id}", level=1)).to_be_visible()
        second = await exported(me, tmp_path / "second.json")
    one, two = [json.loads(file.read_text()) for file in (first, second)]
    assert one["conversation"]["title"] == two["conversation"]["title"] == f"Cranes {way.id}"
    assert texts(one) == texts(two)
    assert "list_files" in json.dumps(two) and "I look." in json.dumps(two)


async def exported(me: Person, file: Path) -> Path:
    await me.press(me.button("conversation.actions"))
    async with me.page.expect_download() as download:
        await me.press(me.page.get_by_role("menuitem", name=me.t("conversation.json")))
    await (await download.value).save_as(file)
    return file


def texts(exported: dict[str, Any]) -> list[Any]:
    """Return what people and models wrote, without ids and times."""
    kinds = ("message.user", "message.assistant", "message.tool", "tool_call.completed")
    return [
        (one["type"], one["data"].get("content"), one["data"].get("reasoning"))
        for one in exported.get("events", [])
        if one["type"] in kinds
    ]


def node(at: str, parent: str | None, role: str | None, parts: list[Any], **more: Any) -> dict[str, Any]:
    """Return a message of an export of ChatGPT."""
    author = {"role": role, **more.pop("author", {})}
    content = {"content_type": "text", "parts": parts, **more.pop("content", {})}
    message = {"id": at, "author": author, "content": content, "create_time": 1_750_000_000, **more}
    return {"id": at, "parent": parent, "children": [], "message": message if role else None}


def export_of(title: str, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an export of ChatGPT, whose last message is the current one."""
    mapping = {one["id"]: one for one in nodes}
    for one in nodes:
        if one["parent"]:
            mapping[one["parent"]]["children"].append(one["id"])
    return [{
        "title": title,
        "create_time": 1_750_000_000,
        "update_time": 1_750_000_100,
        "mapping": mapping,
        "current_node": nodes[-1]["id"],
        "conversation_id": "11111111-2222-3333-4444-555555555555",
    }]  # fmt: skip


def of_chatgpt() -> list[dict[str, Any]]:
    """Return two versions of a reply, a call of a tool, and a picture."""
    picture = {
        "content_type": "image_asset_pointer",
        "asset_pointer": "file-service://file-Crane1",
        "width": 1,
        "height": 1,
        "size_bytes": len(PICTURE),
    }
    several = {"content_type": "multimodal_text"}
    code = {"content_type": "code", "text": "8*5"}
    nodes = [
        node("root", None, None, []),
        node("u1", "root", "user", [picture, "How heavy is it?"], content=several),
        node("a1", "u1", "assistant", ["Perhaps 32 t."]),
        node("c1", "u1", "assistant", [], recipient="python", content=code),
        node("t1", "c1", "tool", ["40"], author={"name": "python"}),
        node("a2", "t1", "assistant", ["It is 40 t."]),
    ]
    return export_of("Loads of a crane", nodes)


def long(messages: int, title: str) -> list[dict[str, Any]]:
    """Return an export with so many messages, the half of them replies."""
    nodes = [node("m-1", None, None, [])]
    for at in range(messages):
        role, words = ("assistant", "Reply") if at % 2 else ("user", "Message")
        nodes.append(node(f"m{at}", f"m{at - 1}", role, [f"{words} {at // 2}."]))
    return export_of(title, nodes)


@ways(WIDE, PHONE)
async def test_an_export_of_another_product_is_imported(office: Office, way: Way, tmp_path: Path) -> None:
    """Task 31: both versions of a reply, the call of the tool, and the picture."""
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("conversations.json", json.dumps(of_chatgpt()))
        archive.writestr("file-Crane1-crane.png", PICTURE)
    async with office.person(way) as me:
        await me.page.locator("#import-file").set_input_files(file)
        await me.page.wait_for_url(lambda url: "#/c/" in url)
        await expect(me.page.get_by_role("heading", name="Loads of a crane", level=1)).to_be_visible()
        await expect(me.page.get_by_text("It is 40 t.")).to_be_visible()
        await expect(me.page.locator(".bubble")).to_contain_text("How heavy is it?")
        await expect(me.page.locator(".turn img, .bubble img").first).to_be_visible()
        await expect(me.page.get_by_text("2/2")).to_be_visible()
        await me.press(me.button("versions.previous"))
        await expect(me.page.get_by_text("Perhaps 32 t.")).to_be_visible()
        await expect(me.page.get_by_text("It is 40 t.")).to_be_hidden()


@ways()
async def test_everything_is_done_from_the_palette(office: Office, way: Way) -> None:
    """Task 32: a new conversation, its name, its files, a view, the theme."""
    conversation = await office.conversation(ScriptedReply(text="Yes."), title="Before")
    async with office.at(conversation, way) as me:
        title = me.page.get_by_role("heading", level=1)
        await expect(title).to_have_text("Before")
        await me.command(me.t("palette.conversation") + " " + me.t("conversation.rename"))
        await expect(me.page.get_by_role("textbox", name=me.t("conversation.title"))).to_be_focused()
        await me.page.keyboard.press("Control+a")
        await me.page.keyboard.type("After")
        await me.page.keyboard.press("Enter")
        await expect(title).to_have_text("After")
        await me.command(me.t("header.filesTitle"))
        await expect(me.page.get_by_role("complementary", name=me.t("files.tab.files"))).to_be_visible()
        await me.page.keyboard.press("Escape")
        other, scheme = ("light", "light") if way.theme == "dark" else ("dark", "dark")
        await me.command(me.t("palette.theme") + " " + me.t(f"settings.theme.{other}"))
        await expect(me.page.locator("html")).to_have_css("color-scheme", scheme)
        for view in (
            "schedule.title",
            "workflow.title",
            "assistant.list",
            "inbox.title",
            "settings.title",
            "rules.title",
            "people.title",
            "mcp.title",
            "servers.title",
            "audit.title",
            "operator.title",
        ):
            await me.view(view)
            await expect(title).to_have_text(me.t(view))
        await me.command(me.t("sidebar.new"))
        await expect(title).to_have_text(me.t("sidebar.new"))


@ways()
async def test_texts_that_are_hard_to_show_fit_the_window(office: Office, way: Way) -> None:
    """Task 33: right-to-left text, a table with numbers, and a line of a megabyte."""
    table = "| crane | load |\n|---|---:|\n| north | 1 234 567.89 kg |\n"
    replies = ("הרמה בטיחה.", table, "x" * 1_000_000)
    conversation = await office.conversation(*[ScriptedReply(text=text) for text in replies])
    async with office.at(conversation, way) as me:
        for count in (1, 2, 3):
            await me.ask("Next?")
            await me.ended(count=count)
        hebrew = me.page.locator(".turn.assistant p").first
        await expect(hebrew).to_have_css("direction", "rtl")
        number = me.page.get_by_role("cell", name="1 234 567.89 kg")
        box = await number.bounding_box()
        assert box is not None and box["height"] < 60
        await expect(me.composer).to_be_editable()


@ways()
async def test_the_newest_of_two_thousand_messages_are_read(office: Office, way: Way) -> None:
    """Task 33: they are in view, and the message box is usable at once."""
    conversation = await office.imported(long(2_000, f"Long {way.id}"))
    async with office.at(conversation, way) as me:
        await expect(me.page.get_by_text("Reply 999.", exact=True)).to_be_in_viewport()
        await me.write(me.composer, "Still here.")
        await expect(me.composer).to_have_value("Still here.")


@ways(WIDE)
async def test_a_reply_longer_than_a_frame_is_read_to_its_end(office: Office, way: Way) -> None:
    """R34: a frame has at most 256 KiB, so the reply arrives without its text."""
    # In JSON, which escapes quotation marks, 240,000 characters are 360,000 bytes.
    text = '"a" ' * 60_000 + "\n\nThe last words."
    name = office.play(ScriptedReply(text=text), name=f"much-{way.id}")
    async with office.answered_by(name), office.person(way) as me:
        await me.ask("Write much.")
        await me.ended()
        await expect(me.page.get_by_text("The last words.", exact=True)).to_be_in_viewport()
        await me.page.reload()
        await expect(me.page.get_by_text("The last words.", exact=True)).to_be_in_viewport()
        await expect(me.page.get_by_text("characters left out")).to_have_count(0)


@ways()
async def test_twelve_conversations_are_in_view(office: Office, way: Way) -> None:
    """Task 35: at 1280 by 800; in the drawer of a phone, whose rows are higher, the first nine."""
    async with office.http() as http:
        for number in range(14):
            await http.post("/context/conversations", json={"title": f"Crane {number}"})
    async with office.person(way) as me:
        await me.page.set_viewport_size({"width": way.width, "height": 800})
        if way.width < 800:
            await me.press(me.button("sidebar.label"))
        rows = me.page.locator(".conversation")
        await expect(rows.nth(13)).to_be_attached()
        await expect(rows.nth(0)).to_be_in_viewport()
        assert await rows_in_view(me.page) >= (9 if way.width < 800 else 12)
        title = await rows.nth(11).locator(".conversation-title").inner_text()
        await me.press(rows.nth(11).get_by_role("link"))
        await expect(me.page.get_by_role("heading", level=1)).to_have_text(title)
