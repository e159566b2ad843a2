"""Strict stand-ins of the providers of web searches. A request that the real one refuses is refused alike.

SearXNG: https://docs.searxng.org/dev/search_api.html, and its `/search` for redirects and failed engines.
Brave: https://api-dashboard.search.brave.com/app/documentation/web-search/query
Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "the-key-of-a-search-provider"

Item = dict[str, Any]
"""A page: `url`, `title`, `text` and, if the provider knows it, `day` as `2026-03-01`."""

PAGES: tuple[Item, ...] = (
    {
        "url": "https://docs.example.org/leases",
        "title": "Leases",
        "text": "How a lease ends",
        "day": "2026-03-01",
    },
    {"url": "http://example.com/a?b=1", "title": "Locks & leases", "text": "It isn't a lock", "day": None},
)

_BRAVE_FIELDS = frozenset(
    "q country search_lang ui_lang count offset safesearch freshness text_decorations spellcheck "
    "result_filter goggles units extra_snippets summary operators".split()
)
_TAVILY_FIELDS = frozenset(
    "query topic search_depth chunks_per_source max_results time_range days start_date end_date "
    "include_answer include_raw_content include_images include_image_descriptions include_favicon "
    "include_domains exclude_domains country".split()
)


@dataclass
class SearchProviders:
    """All three at one port: `/search` of SearXNG, `/res/v1/web/search` and `/tavily/search`."""

    pages: tuple[Item, ...] = PAGES
    formats: tuple[str, ...] = ("html", "json")
    """The formats in the settings of SearXNG."""
    exhausted: bool = False
    """Whether the limit of the plan is reached."""
    queries: list[str] = field(default_factory=list[str])

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/search", self.searxng)
        app.router.add_get("/res/v1/web/search", self.brave)
        app.router.add_post("/tavily/search", self.tavily)
        return app

    async def searxng(self, request: web.Request) -> web.Response:
        values, query = request.query, request.query.get("q", "")
        if values.get("format", "html") not in self.formats:
            return web.Response(status=403, text="<!doctype html><title>403 Forbidden</title>")
        if not query:
            return web.json_response({"error": "No query"}, status=400)
        self.queries.append(query)
        if query.startswith("!!"):
            raise web.HTTPFound("https://elsewhere.example/?q=secret")
        failed = [["brave", "too many requests"], ["google", "CAPTCHA"]] if self.exhausted else []
        results = [] if self.exhausted else [_of_searxng(page) for page in self.pages]
        return web.json_response(
            {
                "query": query,
                "number_of_results": 0,
                "results": results,
                "answers": [],
                "corrections": [],
                "infoboxes": [],
                "suggestions": ["lease renewal"],
                "unresponsive_engines": failed,
            }
        )

    async def brave(self, request: web.Request) -> web.Response:
        values = request.query
        query, count = values.get("q", ""), values.get("count", "20")
        token = request.headers.get("X-Subscription-Token")
        if token is None or not _BRAVE_FIELDS.issuperset(values):
            return _brave_error(422, "VALIDATION", "Unable to validate request parameter(s)")
        if token != KEY:
            return _brave_error(
                422, "SUBSCRIPTION_TOKEN_INVALID", f"The provided subscription token {token} is invalid."
            )
        if not 1 <= len(query) <= 400 or len(query.split()) > 50 or not 1 <= int(count) <= 20:
            return _brave_error(422, "VALIDATION", "Unable to validate request parameter(s)")
        if self.exhausted:
            return _brave_error(429, "RATE_LIMITED", "Request rate limit exceeded for plan.")
        self.queries.append(query)
        found = [_of_brave(page) for page in self.pages[: int(count)]]
        listed = {"web": {"type": "search", "results": found, "family_friendly": True}} if found else {}
        response = web.json_response({"type": "search", "query": {"original": query}, **listed})
        response.enable_compression()
        return response

    async def tavily(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return _tavily_error(401, "Unauthorized: missing or invalid API key.")
        body = await request.json()
        count = body.get("max_results", 5)
        if not _TAVILY_FIELDS.issuperset(body) or not body.get("query") or not 0 <= count <= 20:
            return _tavily_error(400, "Query is missing or a parameter is invalid.")
        if self.exhausted:
            return _tavily_error(432, "This request exceeds your plan's set usage limit.")
        self.queries.append(body["query"])
        return web.json_response(
            {
                "query": body["query"],
                "follow_up_questions": None,
                "answer": None,
                "images": [],
                "results": [_of_tavily(page) for page in self.pages[:count]],
                "response_time": 1.09,
                "request_id": "123e4567-e89b-12d3-a456-426614174111",
            }
        )


def _of_searxng(page: Item) -> Item:
    day = page["day"] and f"{page['day']}T00:00:00"
    return {
        "url": page["url"],
        "title": page["title"],
        "content": page["text"],
        "publishedDate": day,
        "engine": "duckduckgo",
        "engines": ["duckduckgo"],
        "parsed_url": ["https", "docs.example.org", "/leases", "", "", ""],
        "template": "default.html",
        "positions": [1],
        "score": 1.0,
        "category": "general",
    }


def _of_brave(page: Item) -> Item:
    escaped = page["text"].replace("'", "&#x27;")
    dated = {"age": "March 1, 2026", "page_age": f"{page['day']}T08:30:00"} if page["day"] else {}
    return {
        "title": page["title"].replace("&", "&amp;"),
        "url": page["url"],
        "is_source_local": False,
        "description": escaped,
        "language": "en",
        "meta_url": {"scheme": "https", "netloc": "docs.example.org", "path": "/leases"},
        **dated,
    }


def _of_tavily(page: Item) -> Item:
    dated = {"published_date": "Sun, 01 Mar 2026 16:10:00 GMT"} if page["day"] else {}
    return {
        "title": page["title"],
        "url": page["url"],
        "content": page["text"],
        "score": 0.98,
        "raw_content": None,
        **dated,
    }


def _brave_error(status: int, code: str, detail: str) -> web.Response:
    error = {"id": "5d832250-9396", "status": status, "code": code, "detail": detail, "meta": {}}
    return web.json_response({"type": "ErrorResponse", "error": error, "time": 1663072993}, status=status)


def _tavily_error(status: int, error: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"detail": {"error": error}}), content_type="application/json"
    )
