"""The lists of models of all upstreams, refreshed in the background."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp

from banksman.contracts.wire import JsonObject
from banksman.gateway.interfaces.passthrough.headers import authorization
from banksman.gateway.settings import Dialect, Upstream
from banksman.runtime.background import Background, BackgroundTask
from banksman.runtime.redaction import redacted

logger = logging.getLogger(__name__)

REFRESH_S = 300.0
RETRY_S = 10.0
TIMEOUT_S = 10.0
FIRST_LIST_S = 2.0
MAX_TIME = 2**33
"""Seconds since 1970; a later time of an upstream is treated as an error."""


class ModelLists:
    """The models that the upstreams list, in OpenAI's format."""

    def __init__(self, upstreams: tuple[Upstream, ...], background: Background) -> None:
        self._upstreams = upstreams
        self._background = background
        self._models: dict[str, dict[str, JsonObject]] = {}
        """Listed models by upstream and id."""
        self._task: BackgroundTask | None = None
        self._listed = asyncio.Event()

    def start(self, session: aiohttp.ClientSession) -> None:
        """Refresh the lists until `stop`."""

        async def list_all() -> None:
            async with asyncio.TaskGroup() as group:
                for upstream in self._upstreams:
                    group.create_task(self._list(session, upstream))
            self._listed.set()

        self._task = self._background.repeat("upstream-models", list_all, wait=self._wait)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    def has(self, upstream: Upstream, model: str) -> bool:
        """Return whether an upstream lists a model."""
        return model in self._models.get(upstream.name, ())

    async def models(self) -> list[JsonObject]:
        """Return the models of all upstreams, as last listed; each id once.

        Waits until every upstream has responded once, at most two seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_S):
                await self._listed.wait()
        found: dict[str, JsonObject] = {}
        for upstream in self._upstreams:
            for id, model in self._models.get(upstream.name, {}).items():
                found.setdefault(id, model)
        return list(found.values())

    async def names(self) -> list[tuple[str, str]]:
        """Return the upstream and the id of every listed model; waits as `models` does."""
        await self.models()
        return [(name, id) for name, models in self._models.items() for id in models]

    async def _wait(self) -> None:
        if self._listed.is_set():
            complete = len(self._models) == len(self._upstreams)
            await asyncio.sleep(REFRESH_S if complete else RETRY_S)

    async def _list(self, session: aiohttp.ClientSession, upstream: Upstream) -> None:
        dialect: Dialect = "openai" if "openai" in upstream.dialects else upstream.dialects[0]
        headers = authorization(upstream, dialect)
        if dialect == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # No redirects: one would send the upstream's key to another host.
                request = session.get(upstream.url("/models"), headers=headers, allow_redirects=False)
                async with request as response:
                    response.raise_for_status()
                    listed = json.loads(await response.read())
            models = [_model(entry, upstream.name) for entry in listed["data"]]
            self._models[upstream.name] = {str(model["id"]): model for model in models}
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            reason = redacted(str(error)) or type(error).__name__
            logger.warning("the models of %s could not be listed: %s", upstream.name, reason)


def _model(entry: Any, owner: str) -> JsonObject:
    found = cast(dict[str, Any], entry)
    created = found.get("created")
    return {
        "id": str(found["id"]),
        "object": "model",
        "created": created if isinstance(created, int) and 0 <= created < MAX_TIME else 0,
        "owned_by": str(found.get("owned_by") or owner),
    }


def anthropic_model(model: JsonObject) -> JsonObject:
    """Return a model in Anthropic's format."""
    created = datetime.fromtimestamp(cast(int, model["created"]), UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
