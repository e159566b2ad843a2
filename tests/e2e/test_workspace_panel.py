"""The panel of the workspace: tree, editor, changes and commands."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from tests.e2e.scenes import call, start
from tests.e2e.stage import Stage
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

FILES = "context/conversations/c1/files"


def _files(stage: Stage, **content: bytes) -> None:
    at = {"modified_at": "2026-01-02T10:00:00Z"}
    paths = {name.replace("__", "/").replace("_", "."): data for name, data in content.items()}
    stage.resources[FILES] = {
        "items": [{"path": path, "size": len(data), **at} for path, data in paths.items()]
    }
    stage.resources |= {f"{FILES}/{path}": data for path, data in paths.items()}


async def _panel(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.url}/#/c/c1")
    await (
        page.get_by_role("button", name="Files of the workspace")
        .or_(page.get_by_role("button", name="Files", exact=True))
        .first.click()
    )


async def test_a_file_is_edited_and_a_change_of_the_agent_is_not_overwritten_unasked(stage: Stage) -> None:
    start(stage)
    _files(stage, src__load_py=b"mass = 40\n", notes_md=b"# Notes\n")
    stage.resources["context/conversations/c1/archive"] = b"PK"
    async with opened(stage.url) as page:
        await _panel(page, stage)
        await expect(page.locator("summary", has_text="src")).to_be_visible()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download all files").click()
        assert (await download.value).suggested_filename == "c1.zip"

        await page.get_by_role("button", name="load.py").first.click()
        await page.get_by_role("button", name="Edit").click()
        editor = page.get_by_role("textbox", name="Content of src/load.py")
        await editor.fill("mass = 41\n")
        await expect(page.locator(".file-editor .hljs-number")).to_have_text("41")
        stage.resources[f"{FILES}/src/load.py"] = b"mass = 42\n"
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("The file was changed since you opened it.")).to_be_visible()
        assert stage.uploads == {}
        await page.get_by_role("button", name="Save anyway").click()
        stored = await eventually(lambda: stage.uploads.get(f"{FILES}/src/load.py"), WAIT_TIMEOUT_S)
    assert stored == b"mass = 41\n"


async def test_an_edited_file_keeps_its_line_ends_and_its_byte_order_mark(stage: Stage) -> None:
    start(stage)
    _files(stage, notes_txt=b"\xef\xbb\xbfone\r\ntwo\r\n")
    async with opened(stage.url) as page:
        await _panel(page, stage)
        await page.get_by_role("button", name="notes.txt").first.click()
        await page.get_by_role("button", name="Edit").click()
        editor = page.get_by_role("textbox", name="Content of notes.txt")
        await editor.press("Control+End")
        await editor.press_sequentially("three\n")
        await page.get_by_role("button", name="Save").click()
        stored = await eventually(lambda: stage.uploads.get(f"{FILES}/notes.txt"), WAIT_TIMEOUT_S)
    assert stored == b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"


async def test_output_has_its_colours(stage: Stage) -> None:
    start(stage)
    call(stage, "k1", "bash", {"command": "ls"}, content={"stdout": "\x1b[31mred\x1b[0m plain"}, exit_code=0)
    async with opened(stage.url) as page:
        await page.goto(f"{stage.url}/#/c/c1")
        await page.get_by_role("button", name="Details").click()
        await page.locator(".tool-head").first.click()
        await expect(page.locator(".ansi-red")).to_have_text("red")


async def test_changes_and_running_commands_are_shown_and_a_run_is_stopped(stage: Stage) -> None:
    def cancelled() -> dict[str, Any] | None:
        return next((frame for frame in stage.received if frame["type"] == "run.cancel"), None)

    start(stage)
    call(stage, "k1", "bash", {"command": "seq 3"}, content={"stdout": "1\n2\n3"}, exit_code=2)
    stage.event("workspace.changed", {"paths": [{"path": "new.txt", "change": "created"}]})
    call(stage, "k2", "bash", {"command": "sleep 60"})
    _files(stage, new_txt=b"one\n")
    async with opened(stage.url) as page:
        await _panel(page, stage)
        await page.get_by_role("button", name="Changes").click()
        await page.locator(".file-changes summary").click()
        await expect(page.locator(".diff .row.added")).to_have_text("+one")

        await page.get_by_role("button", name="Terminal").click()
        terminal = page.get_by_role("log", name="Commands and their output")
        await expect(terminal).to_contain_text("$ seq 3")
        await expect(terminal).to_contain_text("exit code 2")
        output = {"tool_call_id": "k2", "text": "half way\n", "stream": "stdout"}
        live = {"type": "tool_call.output", "conversation_id": "c1", "run_id": "c1-r1", "data": output}
        await stage.send(live)
        await expect(terminal).to_contain_text("half way")
        await stage.send({**live, "data": {**output, "text": "x" * 100_000}})
        await expect(terminal).to_contain_text("The rest of the output is shown when the command has ended.")
        assert [frame["detail"] for frame in stage.received if frame["type"] == "subscribe"][-1] == "full"
        await page.locator(".terminal").get_by_role("button", name="Stop").click()
        await eventually(cancelled, WAIT_TIMEOUT_S)


async def test_what_a_command_changed_is_compared_and_downloaded_as_a_patch(stage: Stage) -> None:
    """Also many files: the reply names the first ones and counts the others."""
    start(stage)
    call(stage, "k1", "bash", {"command": "make"}, content={"stdout": ""}, exit_code=0)
    paths = [{"path": f"out/{number:02}.o", "change": "created"} for number in range(20)]
    stage.event(
        "workspace.changed", {"paths": [{"path": "old.txt", "change": "modified"}, *paths], "more": 300}
    )
    patch = (
        "diff --git a/old.txt b/old.txt\n--- a/old.txt\n+++ b/old.txt\n@@ -1,2 +1,2 @@\n same\n-one\n+two\n"
    )
    compared = {"path": "old.txt", "change": "modified", "not_compared": None}
    stage.resources["context/conversations/c1/diff"] = {"files": [compared], "more": 0, "patch": patch}
    stage.resources["context/conversations/c1/patch"] = patch.encode()
    _files(stage)
    async with opened(stage.url) as page:
        await _panel(page, stage)
        await expect(page.locator(".changed")).to_contain_text("and 309 more files")
        await page.get_by_role("button", name="Changes").click()
        await page.locator(".file-changes summary", has_text="old.txt").click()
        await expect(page.locator(".diff .row.added")).to_have_text("+two")
        await expect(page.locator(".diff .row.removed")).to_contain_text("one")
        compared["not_compared"] = "binary"
        await page.locator(".file-changes summary", has_text="old.txt").click()
        await page.locator(".file-changes summary", has_text="old.txt").click()
        await expect(page.get_by_text("The file is not text.")).to_be_visible()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download patch").click()
        assert (await download.value).suggested_filename == "c1.patch"


async def test_what_runs_in_the_background_is_listed_with_its_output_and_stopped(stage: Stage) -> None:
    path = "context/conversations/c1/processes"
    process: dict[str, Any] = {
        "id": "p1",
        "command": "make serve",
        "run_id": "c1-r1",
        "session": None,
        "status": "running",
        "exit_code": None,
        "reason": None,
        "started_at": "2026-01-02T10:00:00Z",
        "output_bytes": 5,
    }
    start(stage)
    _files(stage)
    stage.resources[path] = {"items": [process]}
    part = {"process": process, "start": 100, "next": 120, "more": False}
    stage.resources[f"{path}/p1"] = {**part, "output": "10 %\r20 %\n\x1b[31mready\x1b[0m\n"}
    async with opened(stage.url) as page:
        await _panel(page, stage)
        await page.get_by_role("button", name="Running").click()
        row = page.get_by_role("list", name="Commands that run in the background").get_by_role("listitem")
        await expect(row).to_contain_text("make serve")
        await expect(row).to_contain_text("Since")
        await row.locator("summary").click()
        await expect(row.locator(".ansi-red")).to_have_text("ready")
        await expect(row).not_to_contain_text("10 %")
        await expect(row.get_by_text("Only the end of the output is shown.")).to_be_visible()

        ended = {**process, "status": "ended", "reason": "a user stopped it"}
        stage.resources[path] = {"items": [ended]}
        await row.get_by_role("button", name="Stop make serve").click()
        await expect(row).to_contain_text("a user stopped it")
        await expect(row.get_by_role("button", name="Stop make serve")).to_have_count(0)
    assert f"{path}/p1/stop" in stage.uploads
