"""Manage → Models: servers with their keys, tested at once, and the models of new conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.navigating import open_view
from tests.e2e.stage import Stage
from tests.support.browser import opened

pytestmark = pytest.mark.timeout(120)
"""Seconds; a browser starts slowly on a busy machine."""

SERVER: dict[str, Any] = {
    "name": "mistral",
    "api": "chat",
    "base_url": "https://api.mistral.ai/v1",
    "source": "tenant",
    "setting": None,
    "has_key": True,
    "models": ["mistral-large"],
    "updated_at": "2026-01-02T03:04:05Z",
    "updated_by": "ada",
}
CONFIGURED = {
    **SERVER,
    "name": "openai",
    "base_url": "https://api.openai.com/v1",
    "source": "settings",
    "setting": "BANKSMAN_MODELS__OPENAI_API_KEY",
    "models": [],
}
DEFAULT = {"id": "default", "name": "Default", "model": None, "fallback_models": [], "revision": 1}
MODEL = {
    "id": "mistral:mistral-large",
    "provider": "mistral",
    "name": "mistral-large",
    "context_tokens": 128_000,
    "input_usd": 2.0,
    "output_usd": 6.0,
    "default": False,
}


async def test_a_vendors_key_is_stored_tested_and_chosen_for_new_conversations(stage: Stage) -> None:
    """R80: the operator's settings are named and cannot be changed; a failed test says why."""
    stage.resources |= {
        "context/model-servers": {"items": [CONFIGURED]},
        "PUT context/model-servers/mistral": SERVER,
        "POST context/model-servers/mistral/test": {"problem": "the server returned 401", "models": []},
        "context/assistants/default": DEFAULT,
        "PUT context/assistants/default": {**DEFAULT, "model": MODEL["id"], "revision": 2},
        "context/models": {"items": [MODEL]},
    }
    async with opened(stage.url) as page:
        await open_view(page, "Models")
        await expect(page.get_by_text("BANKSMAN_MODELS__OPENAI_API_KEY")).to_be_visible()
        await page.get_by_role("button", name="Connect a server").click()
        await page.get_by_label("Vendor").select_option("Mistral")
        await page.get_by_label("Key").fill("key-of-the-tenant")
        await page.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(
            "the server returned 401"
        )
        tested = {"problem": None, "models": ["mistral-large"]}
        stage.resources["POST context/model-servers/mistral/test"] = tested
        stage.resources["context/model-servers"] = {"items": [CONFIGURED, SERVER]}
        await page.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_text("mistral works and lists 1 model.")).to_be_visible()
        await expect(page.get_by_role("cell", name="mistral", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Model: Default model", exact=True).click()
        await page.get_by_role("button", name="mistral-large").click()
        await expect(page.get_by_text("The models of new conversations are saved.")).to_be_visible()
    stored = json.loads(stage.uploads["context/model-servers/mistral"])
    assert stored == {"base_url": "https://api.mistral.ai/v1", "api_key": "key-of-the-tenant"}
    assert json.loads(stage.uploads["context/assistants/default"])["model"] == MODEL["id"]


CHOSEN_AND_TYPED = """async (choice) => {
  choice.value = '';
  choice.dispatchEvent(new Event('change', { bubbles: true }));
  const field = () => document.querySelector('dialog input[pattern]');
  while (!field()) await Promise.resolve();
  field().value = 'harbour';
  field().dispatchEvent(new Event('input', { bubbles: true }));
  for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done));
  return field().value;
}"""


async def test_a_name_typed_before_the_field_is_painted_is_kept(stage: Stage) -> None:
    stage.resources |= {
        "context/model-servers": {"items": []},
        "context/assistants/default": DEFAULT,
        "context/models": {"items": []},
    }
    async with opened(stage.url) as page:
        await open_view(page, "Models")
        await page.get_by_role("button", name="Connect a server").click()
        assert await page.get_by_label("Vendor").evaluate(CHOSEN_AND_TYPED) == "harbour"


async def test_a_provider_of_web_searches_is_chosen_and_tested(stage: Stage) -> None:
    unset = {"provider": None, "url": None, "source": "tenant", "setting": None, "has_key": False}
    chosen = {**unset, "provider": "brave", "has_key": True}
    path = "context/search-provider"
    stage.resources |= {
        "context/model-servers": {"items": []},
        "context/assistants/default": DEFAULT,
        path: unset,
        f"PUT {path}": chosen,
        f"POST {path}/test": {"problem": "responded with status 422", "results": 0},
    }
    async with opened(stage.url) as page:
        await open_view(page, "Models")
        part = page.get_by_role("region", name="Web search")
        await part.get_by_label("Provider").select_option("Brave")
        await part.get_by_label("Key").fill("key-of-the-tenant")
        await part.get_by_role("button", name="Save and test").click()
        await expect(part.get_by_role("alert")).to_contain_text("responded with status 422")
        stage.resources |= {path: chosen, f"POST {path}/test": {"problem": None, "results": 1}}
        await part.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_text("Brave returns results.")).to_be_visible()
        stored = json.loads(stage.uploads[path])
        stage.resources[path] = {**chosen, "source": "settings", "setting": "BANKSMAN_SEARCH__DEFAULT"}
        await page.reload()
        await expect(part.get_by_text("BANKSMAN_SEARCH__DEFAULT")).to_be_visible()
        await expect(part.get_by_label("Provider")).to_have_count(0)
    assert stored == {"provider": "brave", "url": None, "api_key": "key-of-the-tenant"}
