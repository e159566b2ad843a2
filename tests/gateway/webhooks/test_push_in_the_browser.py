"""Web Push from the switch on the page to the notification that opens the request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page, Worker, expect
from tests.gateway.conftest import Agent, GatewayFactory
from tests.support.browser import opened
from tests.support.polling import eventually
from tests.support.push_service import Browser, push_service

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

SUBSCRIBE = """([endpoint, keys]) => {
  let key = null;
  const subscription = {
    toJSON: () => ({ endpoint, keys, expirationTime: null }),
    unsubscribe: async () => Boolean((key = null)),
    get options() { return { applicationServerKey: key }; },
  };
  PushManager.prototype.getSubscription = async () => key && subscription;
  PushManager.prototype.subscribe = async ({ applicationServerKey, userVisibleOnly }) => {
    const padded = applicationServerKey.replaceAll('-', '+').replaceAll('_', '/');
    key = Uint8Array.from(atob(padded), (one) => one.charCodeAt(0)).buffer;
    if (!userVisibleOnly || key.byteLength !== 65) throw new TypeError('not a key');
    return subscription;
  };
}"""
"""Stands for the vendor's push service, which this Chromium does not have."""

SHOWN = """async () => (await self.registration.getNotifications())
  .map(({ title, body, tag }) => ({ title, body, tag }))"""
CLICK = """async () => {
  const [notification] = await self.registration.getNotifications();
  self.dispatchEvent(new NotificationEvent('notificationclick', { notification }));
}"""


async def test_a_push_message_becomes_a_notification_that_opens_the_request(
    start_gateway: GatewayFactory, agent: Agent
) -> None:
    """R13: the worker shows the message of the gateway; without the switch nothing is registered."""
    browser = Browser()
    async with (
        push_service() as service,
        start_gateway(webhook_addresses=(service.address,)) as gateway,
        gateway.http as http,
        opened(gateway.url, offline_shell=True) as page,
    ):
        await page.context.grant_permissions(["notifications"])
        await page.evaluate(SUBSCRIBE, [service.endpoint("phone"), browser.keys])
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        worker = await started_worker(page)
        await page.goto(f"{gateway.url}/#/settings")
        switch = page.get_by_role("checkbox", name="Notify this device")
        await switch.check()
        await expect(page.get_by_text("Notifications also arrive while the page is closed.")).to_be_visible()
        devices = (await http.get("/context/push/devices")).json()["items"]

        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start, "rm -rf build")
        message = browser.read((await service.message(1)).body)
        await deliver(page, gateway.url, message)
        shown = await eventually(lambda: worker.evaluate(SHOWN))
        await worker.evaluate(CLICK)
        await expect(page).to_have_url(f"{gateway.url}/#/approvals/{request.approval_id}")
        await expect(page.get_by_text("rm -rf build", exact=True)).to_be_visible()

        await page.goto(f"{gateway.url}/#/settings")
        await switch.uncheck()
        await eventually(lambda: nothing_registered(http))
    assert len(devices) == 1
    assert shown == [{"title": "Approve bash?", "body": "bash: rm -rf build", "tag": request.approval_id}]


async def nothing_registered(http: Any) -> bool:
    return (await http.get("/context/push/devices")).json()["items"] == []


async def started_worker(page: Page) -> Worker:
    await page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    return page.context.service_workers[0]


async def deliver(page: Page, origin: str, message: dict[str, Any]) -> None:
    """Let the browser receive a message as if its push service had sent it."""
    session = await page.context.new_cdp_session(page)
    registration = await registration_of(session)
    data = json.dumps(message)
    params = {"origin": origin, "registrationId": registration, "data": data}
    await session.send("ServiceWorker.deliverPushMessage", params)


async def registration_of(session: CDPSession) -> str:
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def updated(event: dict[str, Any]) -> None:
        if event["registrations"] and not found.done():
            found.set_result(event["registrations"][0]["registrationId"])

    session.on("ServiceWorker.workerRegistrationUpdated", updated)
    await session.send("ServiceWorker.enable")
    return await found
