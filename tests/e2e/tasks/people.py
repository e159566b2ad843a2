"""The people of the tasks: how they sign in, how they see the page, and the conversations that they begin."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from banksman.contracts.ids import digest
from tests.support.browser import Look, opened
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

ANN, BEN = "key-of-ann-0123456789", "key-of-ben-0123456789"
"""Keys of an administrator, and of a colleague who may chat and approve."""
KEYS = [
    {"sha256": digest(key.encode()), "tenant": "local", "user": user, "rights": ["chat", "approve", *more]}
    for key, user, more in ((ANN, "ann", ("admin", "operator")), (BEN, "ben", ()))
]

WIDE, WIDE_DARK = Look(), Look(theme="dark")
PHONE, PHONE_DARK = Look(width=390), Look(width=390, theme="dark")
GERMAN, GERMAN_PHONE = Look(language="de-DE", theme="dark"), Look(width=390, language="de-DE")

_numbers = count(1)


def seen(*looks: Look) -> pytest.MarkDecorator:
    """Play a task once for each look."""
    ids = [f"{look.width}-{look.theme}-{look.language[:2]}" for look in looks]
    return pytest.mark.parametrize("look", looks, ids=ids)


@dataclass(frozen=True)
class Office:
    """The system of the tasks and the model that its agents use."""

    system: System
    model: ScriptedModel

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
    async def person(self, look: Look = WIDE, token: str = ANN, **options: Any) -> AsyncGenerator[Page]:
        """Open the page as a person who has signed in."""
        async with opened(self.system.url, look=look, token=token, **options) as page:
            yield page

    async def conversation(self, *replies: ScriptedReply, **settings: Any) -> str:
        """Create a conversation with a model that gives these replies; return its id."""
        body = {**settings} if "model" in settings else {"model": self.play(*replies), **settings}
        async with self.http() as http:
            created = await http.post("/context/conversations", json=body)
        assert created.status_code == 201, created.text
        return created.json()["conversation_id"]

    @asynccontextmanager
    async def at(self, conversation: str, look: Look = WIDE, **options: Any) -> AsyncGenerator[Page]:
        """Open the page at a conversation."""
        async with self.person(look, **options) as page:
            await page.goto(f"{self.system.url}/#/c/{conversation}")
            yield page

    async def events(self, conversation: str, kind: str) -> list[dict[str, Any]]:
        """Return the stored events of one type."""
        async with self.http() as http:
            found = await http.get(f"/context/conversations/{conversation}/events")
        return [event["data"] for event in found.json()["items"] if event["type"] == kind]


async def ask(page: Page, text: str) -> None:
    """Send a message in the language of the page."""
    box = page.locator("#composer")
    await box.fill(text)
    await box.press("Enter")


async def ended(page: Page, status: str = "completed", count: int = 1) -> None:
    """Wait until the last of so many runs has ended in this way."""
    await expect(page.locator(f"[data-status={status}]")).to_have_count(count)
