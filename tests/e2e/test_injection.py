"""Markup in texts of models, tools and files is shown as text, and never runs."""

from __future__ import annotations

from playwright.async_api import expect

from tests.e2e.scenes import call, finish, reply, start
from tests.e2e.stage import Stage
from tests.support.browser import opened

RUN = "parent.hacked = top.hacked = 1"
NAME = f'"><img src=x onerror="{RUN}">.txt'
REPLY = f"""<svg onload="{RUN}"><script>{RUN}</script></svg> <img src=x onerror="{RUN}">

[link](javascript:{RUN.replace(" ", "")}) ![image](javascript:1 "x" onerror={RUN.replace(" ", "")})

$\\href{{javascript:{RUN.replace(" ", "")}}}{{load}}$ $\\htmlData{{onclick=1}}{{x}}$

```svg
<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"></svg>
```

```mermaid
graph TD
  A["<img src=x onerror='{RUN}'>"] --> B[end of the diagram]
  click A href "javascript:{RUN.replace(" ", "")}"
  click B call hacked()
```

The end of the reply."""

DANGEROUS = """() => [...document.querySelectorAll('*')].filter((element) =>
  [...element.attributes].some(({ name, value }) =>
    name.startsWith('on') || (name !== 'title' && /^\\s*javascript:/i.test(value)))
  || (element.localName === 'script' && element.closest('#app'))).map((element) => element.outerHTML)"""


async def test_no_markup_of_models_tools_and_files_runs(stage: Stage) -> None:
    """R34: text, SVG, maths, diagrams, arguments, results, changed files, file names, and the title."""
    start(stage)
    stage.event("conversation.updated", {"title": NAME}, run_id=None)
    call(stage, "k1", "bash", {"command": NAME}, content={"stdout": REPLY})
    stage.event("workspace.changed", {"paths": [{"path": NAME, "change": "created"}]})
    reply(stage, REPLY)
    finish(stage)
    files = "context/conversations/c1/files"
    stage.resources[files] = {"items": [{"path": NAME, "size": 1, "modified_at": "2026-01-02T10:00:00Z"}]}
    async with opened(stage.url) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        await page.goto(f"{stage.url}/#/c/c1")
        await expect(page.get_by_text("The end of the reply.")).to_be_visible()
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("button", name="Files", exact=True).first.click()
        await expect(page.locator(".panel").get_by_text(NAME)).to_be_visible()
        # A diagram is drawn in a frame of its own and shown as an image, which runs nothing.
        await expect(page.locator(".diagram img")).to_be_visible()
        hacked = await page.evaluate("() => typeof hacked")
        dangerous = await page.evaluate(DANGEROUS)
    assert (hacked, dangerous, dialogs) == ("undefined", [], [])
