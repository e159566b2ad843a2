"""Pictures of the eight main views in both themes and at two widths: `make screenshots`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import Page

from tests.e2e import mcp_scenes, scenes
from tests.e2e.assistant_scenes import assistants
from tests.e2e.run_scenes import runs
from tests.e2e.stage import CONVERSATION, RUN, Stage, staged
from tests.e2e.test_accessibility import SETTLED, THEMES
from tests.e2e.test_rules import POLICY, REMEMBERED
from tests.support.browser import Look, opened, shared_browser

WIDTHS = (390, 1280)
COLOURS = 64
"""Of a picture: texts stay sharp, and all 32 pictures have less than a megabyte."""
VIEWS = {
    "beginning": "",
    "conversation": f"c/{CONVERSATION}",
    "approvals": "approvals",
    "decided": "decided",
    "assistants": "assistants",
    "run": f"runs/{RUN}",
    "rules": "rules",
    "operations": "operator",
}
"""Addresses by name."""


def fill(stage: Stage, view: str) -> None:
    """Load what a view shows."""
    stage.frames.clear()
    stage.resources |= scenes.RESOURCES | mcp_scenes.RESOURCES
    stage.resources |= {"context/policy": POLICY, "context/remembered": {"items": [REMEMBERED]}}
    stage.resources["context/approvals"] = {"items": [scenes.pending(1), scenes.pending(2)]}
    filled: dict[str, Any] = {"conversation": scenes.conversation, "run": runs, "assistants": assistants}
    if view in filled:
        filled[view](stage)


async def picture(page: Page, file: Path) -> None:
    """Store a picture of the window with few colours."""
    await page.wait_for_load_state("networkidle")
    await page.evaluate(SETTLED)
    await page.screenshot(path=file)
    with Image.open(file) as shown:
        shown.convert("RGB").quantize(COLOURS).save(file, optimize=True)


async def main(folder: Path, language: str = "en-US") -> None:
    async with shared_browser(), staged() as stage:
        for name, address in VIEWS.items():
            fill(stage, name)
            for theme in THEMES:
                for width in WIDTHS:
                    async with opened(stage.url, look=Look(width, theme, language)) as page:
                        await page.goto(f"{stage.url}/#/{address}")
                        await page.reload()
                        await page.get_by_role("heading", level=1).wait_for()
                        await picture(page, folder / f"{name}-{width}-{theme}.png")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
