"""The people of the tasks: how they sign in, how they see the page, and the conversations that they begin."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.publish import record_action
from banksman.contracts.administration import AuditEntry
from banksman.contracts.ids import digest
from tests.e2e.catalogues import catalogues
from tests.e2e.test_accessibility import FINDINGS
from tests.scenarios.conftest import nats_url, operator_seed
from tests.support.browser import Look, opened
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

DIRECTION = """control => {
  if (control.tabIndex < 0) return 'ArrowDown';
  const from = document.activeElement ?? document.body;
  return from.compareDocumentPosition(control) & Node.DOCUMENT_POSITION_PRECEDING ? 'Shift+Tab' : 'Tab';
}"""
"""The key that moves the focus towards a control."""

SLOTS = 8
"""Runs that the only agent performs at a time."""
ANN, BEN, SAM = "key-of-ann-0123456789", "key-of-ben-0123456789", "key-of-sam-0123456789"
"""Keys of an administrator, of a colleague who may chat and approve, and of a user of another tenant."""
KEYS = [
    {"sha256": digest(key.encode()), "tenant": tenant, "user": user, "rights": ["chat", "approve", *more]}
    for key, user, tenant, more in (
        (ANN, "ann", "local", ("admin", "operator")),
        (BEN, "ben", "local", ()),
        (SAM, "sam", "small", ()),
    )
]


@dataclass(frozen=True)
class Way(Look):
    """How a person sees the page and works with it."""

    keys: bool = False
    """Whether by keyboard alone."""

    @property
    def id(self) -> str:
        return "-".join([str(self.width), self.theme, self.language[:2], "keys" if self.keys else "mouse"])


WIDE, PHONE, BY_KEYS = Way(), Way(390, "dark", "de-DE"), Way(theme="dark", keys=True)

_numbers = count(1)


def ways(*some: Way) -> pytest.MarkDecorator:
    """Play a task in some ways; without names, in each."""
    played = some or (WIDE, PHONE, BY_KEYS)
    return pytest.mark.parametrize("way", played, ids=[way.id for way in played])


@dataclass(frozen=True)
class Office:
    """The system of the tasks and the model that its agents use."""

    system: System
    model: ScriptedModel
    axe: str = ""
    """The source of axe-core."""
    mcp_port: int = 0
    """The port that tools may connect to, on which a test may serve MCP."""

    def http(self, token: str = ANN) -> httpx.AsyncClient:
        """Return a client of the gateway."""
        headers = {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.system.url, headers=headers, timeout=2 * WAIT_TIMEOUT_S)

    def play(self, *replies: ScriptedReply, name: str = "", **options: Any) -> str:
        """Load replies; return the name of the model that gives them."""
        return self.model.play(name or f"task-{next(_numbers)}", replies, **options)

    def requests(self, model: str) -> list[dict[str, Any]]:
        """Return the bodies of the requests to a scripted model, oldest first."""
        return [one["body"] for one in self.model.requests(model.rpartition("/")[2])]

    @asynccontextmanager
    async def person(
        self, way: Way = WIDE, token: str | None = ANN, at: str = "", **options: Any
    ) -> AsyncGenerator[Person]:
        """Open an address of the page as a person who has signed in; check the last state of the page."""
        async with opened(self.system.url, look=way, token=token, **options) as page:
            if at:
                await page.goto(f"{self.system.url}/#/{at}")
            # Its keys work from then on.
            await expect(page.locator(".account, .login").first).to_be_attached()
            person = Person(page, way, self.system.url)
            yield person
            await person.check(self.axe)

    async def conversation(self, *replies: ScriptedReply, **settings: Any) -> str:
        """Create a conversation with a model that gives these replies; return its id."""
        body = {**settings} if "model" in settings else {"model": self.play(*replies), **settings}
        async with self.http() as http:
            created = await http.post("/context/conversations", json=body)
        assert created.status_code == 201, created.text
        return created.json()["conversation_id"]

    @asynccontextmanager
    async def at(self, conversation: str, way: Way = WIDE, **options: Any) -> AsyncGenerator[Person]:
        """Open the page at a conversation."""
        async with self.person(way, at=f"c/{conversation}", **options) as person:
            yield person

    async def events(self, conversation: str, kind: str) -> list[dict[str, Any]]:
        """Return the stored events of one type."""
        async with self.http() as http:
            found = await http.get(f"/context/conversations/{conversation}/events")
        return [event["data"] for event in found.json()["items"] if event["type"] == kind]

    @asynccontextmanager
    async def answered_by(self, model: str | None) -> AsyncGenerator[None]:
        """Let the default assistant use a model; restore what it uses now."""
        address = "/context/assistants/default"

        async def change(fields: dict[str, Any]) -> None:
            now = (await http.get(address)).json()
            body = {name: value for name, value in (now | fields).items() if name != "id"}
            stored = await http.put(address, json=body)
            assert stored.is_success, stored.text

        async with self.http() as http:
            before = (await http.get(address)).json()
            await change({"model": model})
            try:
                yield
            finally:
                await change({"model": before["model"]})

    async def imported(self, content: Any) -> str:
        """Import a conversation of another product; return its id."""
        async with self.http() as http:
            stored = await http.post("/context/conversations/import", json=content)
        assert stored.is_success, stored.text
        return stored.json()["items"][0]["conversation_id"]

    async def event(self, conversation: str, kind: str) -> dict[str, Any]:
        """Wait for the first stored event of a type."""
        return (await eventually(lambda: self.events(conversation, kind), WAIT_TIMEOUT_S))[0]

    async def earlier_decision(self, conversation: str, days: int) -> None:
        """Repeat the only decision of a conversation in the audit trail, so many days earlier."""

        async def found() -> AuditEntry | None:
            async with self.http() as http:
                listed = (await http.get("/v1/audit", params={"action": "approval"})).json()["items"]
            mine = [one for one in listed if one["details"]["conversation_id"] == conversation]
            return AuditEntry(**{name: mine[0][name] for name in AuditEntry.model_fields}) if mine else None

        entry = await eventually(found, WAIT_TIMEOUT_S)
        async with self.operator() as bus:
            moved = entry.model_copy(update={"ts": entry.ts - timedelta(days=days)})
            await record_action(bus, moved, msg_id=f"earlier-{conversation}")

    @asynccontextmanager
    async def operator(self) -> AsyncGenerator[Bus]:
        """Connect to the broker with the operator's key."""
        settings = NatsSettings(
            url=nats_url(self.system),
            nkey_seed_file=operator_seed(self.system),
            connect_timeout_s=WAIT_TIMEOUT_S,
        )
        async with await Bus(settings, name="tasks", inbox_prefix="_INBOX_operator").open() as bus:
            yield bus


@dataclass(frozen=True)
class Person:
    """A person at the page: reads it in a language, and works with a pointer or by keyboard alone."""

    page: Page
    way: Way
    url: str

    def t(self, key: str, count: int | None = None, **values: Any) -> str:
        """Return a text of the page, of which missing values are left out at its end."""
        text = catalogues()[self.way.language[:2]][key]
        if not isinstance(text, str):
            text = text["one" if count == 1 else "other"]
        for name, value in {"count": count, **values}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text.partition("{")[0].rstrip()

    def button(self, key: str, within: Locator | Page | None = None, **values: Any) -> Locator:
        """Return the button with a text of the page as its name."""
        return (within or self.page).get_by_role("button", name=self.t(key, **values), exact=True)

    def named(self, key: str, within: Locator | Page | None = None, **values: Any) -> Locator:
        """Return the field with a text of the page as its label."""
        return (within or self.page).get_by_label(self.t(key, **values))

    @property
    def composer(self) -> Locator:
        return self.page.locator("#composer")

    @property
    def card(self) -> Locator:
        return self.page.locator(".approval.pending")

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    async def reach(self, control: Locator) -> None:
        """Move the focus to a control by Tab, or inside a menu by its arrow keys; at most 250 times."""
        await expect(control).to_be_visible()
        key = await control.evaluate(DIRECTION)
        for _ in range(250):
            if await control.evaluate("element => element === document.activeElement"):
                return
            await self.page.keyboard.press(key)
        raise AssertionError(f"not reached by {key}: {control}")

    async def press(self, control: Locator, key: str = "Enter") -> None:
        """Use a button, a link, or with the space bar a box."""
        if self.way.keys:
            await self.reach(control)
            await self.page.keyboard.press(key)
        else:
            await control.click()

    async def write(self, field: Locator, text: str) -> None:
        """Replace the text of a field."""
        if self.way.keys:
            await self.reach(field)
            await self.page.keyboard.press("Control+a")
            await self.page.keyboard.insert_text(text)
        else:
            await field.fill(text)

    async def choose(self, choices: Locator, value: str) -> None:
        """Choose an option of a list by its value."""
        if not self.way.keys:
            await choices.select_option(value)
            return
        await self.reach(choices)
        options = await choices.evaluate("list => [...list.options].map((one) => one.value)")
        steps = options.index(value) - options.index(await choices.input_value())
        for _ in range(abs(steps)):
            await self.page.keyboard.press("ArrowDown" if steps > 0 else "ArrowUp")
        await expect(choices).to_have_value(value)

    async def pick(self, opener: Locator, files: Any) -> None:
        """Choose files in the dialog of the system that a control opens."""
        async with self.page.expect_file_chooser() as chooser:
            await self.press(opener)
        await (await chooser.value).set_files(files)

    async def palette(self, text: str) -> Locator:
        """Open the palette, write in it, and return its first option."""
        if self.way.keys or self.way.width > 800:
            await self.page.keyboard.press("Control+k")
        else:
            await self.press(self.button("sidebar.label"))
            await self.press(self.page.get_by_role("button", name=self.t("sidebar.search")).first)
        field = self.dialog.get_by_role("combobox")
        await expect(field).to_be_focused()
        await self.page.keyboard.insert_text(text)
        return self.dialog.get_by_role("option", name=text).first

    async def command(self, text: str) -> None:
        """Run a command of the palette."""
        option = await self.palette(text)
        await expect(option).to_be_visible()
        if self.way.keys:
            while await option.get_attribute("aria-selected") != "true":
                await self.page.keyboard.press("ArrowDown")
            await self.page.keyboard.press("Enter")
        else:
            await option.click()

    async def view(self, key: str) -> None:
        """Open a view by the palette."""
        await self.command(self.t(key))
        await expect(self.page.get_by_role("heading", level=1)).to_be_focused()

    async def ask(self, text: str) -> None:
        """Send a message."""
        await self.write(self.composer, text)
        await self.page.keyboard.press("Enter")

    async def ended(self, status: str = "completed", count: int = 1) -> None:
        """Wait until the last of so many runs has ended in this way."""
        await expect(self.page.locator(f"[data-status={status}]")).to_have_count(count)

    async def check(self, axe: str) -> None:
        """Check the state of the page: nothing of it is beside the window, and axe-core finds nothing."""
        if folder := os.environ.get("TASK_SCREENSHOTS"):
            name = os.environ["PYTEST_CURRENT_TEST"].rpartition("::test_")[2].partition(" ")[0]
            await self.page.screenshot(path=f"{folder}/{name.replace('/', '-')}.png")
        await self.page.evaluate(axe)
        found = await self.page.evaluate(FINDINGS)
        wide = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert not found and wide <= 0, f"{found}, {wide} px too wide"
