"""The page without a network, and after an update."""

from __future__ import annotations

from playwright.async_api import expect

from banksman.gateway.interfaces.page.routes import first_modules, version
from tests.e2e.stage import Stage
from tests.support.browser import opened

STORED = """async (count) => {
  const names = async () => (await (await caches.open('banksman-page')).keys()).map(({ url }) => url);
  while ((await names()).length < count) await new Promise((done) => requestAnimationFrame(done));
  return names();
}"""
STALE = "async (url) => (await caches.open('banksman-page')).put(url, new Response('old'))"


async def test_the_page_opens_without_a_network_and_stores_nothing_but_its_files(stage: Stage) -> None:
    async with opened(stage.url, offline_shell=True) as page:
        stored = await page.evaluate(STORED, len(first_modules()) + 1)
        await page.context.set_offline(True)
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        await page.context.set_offline(False)
        stale = f"{stage.url}/static/v0123456789ab/main.mjs"
        await page.evaluate(STALE, stale)
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        left = await page.evaluate(STORED, 1)
    allowed = (f"{stage.url}/static/v{version()}/", f"{stage.url}/")
    assert [url for url in stored if not url.startswith(allowed[0]) and url != allowed[1]] == []
    assert stale not in left
