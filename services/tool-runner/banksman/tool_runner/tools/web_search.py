"""Searches the web with the provider that the request for a call names: SearXNG, Brave or Tavily.

The sender of the call adds the provider with its key. Only the provider receives the key: it is sent over
https, or to a server that the runner's operator has allowed by its address, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
from typing import cast

from banksman.contracts.calls import SearchTarget
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import WEB_SEARCH
from banksman.runtime.redaction import Redaction
from banksman.runtime.search_apis import SearchFailed, request_to, results_in
from banksman.tool_runner.egress.client import Egress, Fetched, FetchFailed, Request, rules_of
from banksman.tool_runner.sandbox.base import run_until
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools import toolbox

_DEFAULT_RESULTS = 10


class WebSearchTool:
    definition = WEB_SEARCH

    def __init__(self, egress: Egress, limits: RunnerLimits) -> None:
        self._egress = egress
        self._max_chars = limits.max_output_chars

    async def run(self, arguments: JsonObject, run: toolbox.ToolRun) -> toolbox.ToolOutcome:
        """Request the provider once; only an explicit list of results counts as success."""
        target = run.search
        if target is None:
            return toolbox.failure("unavailable", "no search provider is configured for this tenant")
        count = int(cast(int, arguments.get("max_results", _DEFAULT_RESULTS)))
        try:
            request = self._request(target, str(arguments["query"]), count)
            sending = self._egress.send(request, timeout_s=run.timeout_s, within=rules_of(run.network))
            fetched = await run_until(sending, run.stop.wait())
            if fetched is None:
                return toolbox.failure("cancelled", "the search was cancelled")
            return await asyncio.to_thread(self._outcome, target, fetched, count)
        except UrlRefused as refused:
            return _failure("denied", target, str(refused))
        except FetchFailed as failed:
            return _failure("timeout" if failed.timed_out else "tool_error", target, str(failed))
        except SearchFailed as failed:
            return _failure("tool_error", target, str(failed))

    def _request(self, target: SearchTarget, query: str, count: int) -> Request:
        request = request_to(target, query, count)
        url = parse_url(request.url)
        if target.key is not None and url.scheme != "https" and not self._egress.trusts(url):
            raise UrlRefused("its address needs https, because a key is sent to it")
        headers = tuple((name.encode(), value.encode()) for name, value in request.headers.items())
        return Request(request.method, request.url, headers, request.content)

    def _outcome(self, target: SearchTarget, fetched: Fetched, count: int) -> toolbox.ToolOutcome:
        if fetched.truncated:
            raise SearchFailed(f"responded with more than {len(fetched.body)} bytes")
        found = list(results_in(target.provider, fetched.status, fetched.body))[:count]
        value: JsonObject = {"success": True, "provider": target.provider, "results": [], "truncated": False}
        room, kept = self._max_chars, list[JsonValue]()
        for result in found:
            room -= len(json.dumps(result, ensure_ascii=False))
            if room < 0:
                break
            kept.append(result)
        value |= {"results": kept, "truncated": len(kept) < len(found)}
        shown = cast(JsonObject, _redaction(target).of_content(value))
        return toolbox.ToolOutcome(value=shown, truncated=len(kept) < len(found))


def _redaction(target: SearchTarget) -> Redaction:
    return Redaction(() if target.key is None else (target.key,))


def _failure(kind: toolbox.ErrorKind, target: SearchTarget, why: str) -> toolbox.ToolOutcome:
    return toolbox.failure(kind, f"{target.provider}: {_redaction(target).of(why)}")
