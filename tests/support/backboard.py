"""A local server that speaks Backboard's wire format, with scripted models behind it.

It was written from the models, the requests and the documentation of `backboard-sdk` 1.5.19, not from
recorded traffic, so undocumented behaviour of Backboard is not reproduced. It stores assistants and threads
as documented, and refuses requests that make no sense, which reveals a client's mistakes.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web

from tests.support.backboard_wire import Json, break_off, error, events, events_before, send_raw, sse
from tests.support.scripted_models import HttpError, RawReply, ScriptedReply
from tests.support.web_server import web_server

Outcome = Literal["open", "completed", "refused", "faulted", "disconnected"]

_CREATED_AT = "2026-01-01T00:00:00Z"


@dataclass(slots=True)
class Recorded:
    """One received request, and its outcome."""

    method: str
    path: str
    body: Json
    outcome: Outcome = "open"


@dataclass(slots=True)
class Thread:
    """A conversation as the vendor stores it."""

    assistant_id: str
    messages: list[Json] = field(default_factory=list[Json])
    waiting: Json | None = None
    """The `tool_submit_required` event that waits for outputs."""


class Refused(Exception):
    """A request that gets an error status."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(detail)


class BackboardServer:
    """Plays replies in order: one per run, or per continuation of a run. A gate in a reply never opens."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Recorded] = []
        self.violations: list[str] = []
        """Violations of the format or of the order of requests."""
        self.status_of_no_wait = 409
        """The status for outputs that no run waits for; the documentation does not define it."""
        self.assistants: dict[str, Json] = {}
        self.threads: dict[str, Thread] = {}
        self._replies: deque[ScriptedReply | RawReply] = deque()
        self._changed = asyncio.Event()
        self._made = 0

    @classmethod
    @asynccontextmanager
    async def running(cls, port: int = 0) -> AsyncGenerator[Self]:
        """Serve until the context ends; on a free port by default."""
        server = cls()
        options = {"handler_cancellation": True, "shutdown_timeout": 1}
        async with web_server(server.application(), port, **options) as served:
            server.url = f"http://127.0.0.1:{served}/api"
            yield server

    def application(self) -> web.Application:
        """The routes that the SDK's chat methods use."""
        app = web.Application()
        app.router.add_post("/api/assistants", self._handled(self._create_assistant))
        app.router.add_put("/api/assistants/{assistant}", self._handled(self._update_assistant))
        app.router.add_post("/api/assistants/{assistant}/threads", self._handled(self._create_thread))
        app.router.add_get("/api/threads/{thread}", self._handled(self._read_thread))
        app.router.add_post("/api/threads/messages", self._handled(self._message))
        submit = "/api/threads/{thread}/runs/{run}/submit-tool-outputs"
        app.router.add_post(submit, self._handled(self._submit))
        return app

    def play(self, *replies: ScriptedReply | RawReply) -> None:
        """Append replies."""
        self._replies.extend(replies)

    def paths(self) -> list[str]:
        """Return the paths of the requests so far; ids are replaced by the kind of object they name."""
        return [f"{request.method} {_masked(request.path)}" for request in self.requests]

    async def wait_for(self, path_end: str, outcome: Outcome) -> None:
        """Wait up to 5 s for a request with this outcome."""
        async with asyncio.timeout(5):
            while not any(r.path.endswith(path_end) and r.outcome == outcome for r in self.requests):
                await self._changed.wait()

    def _handled(self, handle: Any) -> Any:
        async def handler(request: web.Request) -> web.StreamResponse:
            body: Json = json.loads(await request.read() or b"{}")
            recorded = Recorded(request.method, request.path, body)
            self.requests.append(recorded)
            self._notify()
            outcome: Outcome = "disconnected"
            try:
                if not request.headers.get("X-API-Key"):
                    raise Refused(401, "an API key is missing")
                response: web.StreamResponse = await handle(request, body)
                outcome = "faulted" if response.status >= 400 else "completed"
                return response
            except Refused as refused:
                outcome = "refused"
                if refused.status == 400:
                    self.violations.append(f"{request.method} {request.path}: {refused.detail}")
                return web.json_response({"detail": refused.detail}, status=refused.status)
            except ConnectionResetError:
                return web.Response()
            finally:
                recorded.outcome = outcome
                self._notify()

        return handler

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _create_assistant(self, _request: web.Request, body: Json) -> web.Response:
        if not body.get("name"):
            raise Refused(422, "name: field required")
        assistant_id = self._id()
        self.assistants[assistant_id] = _configured({}, body)
        return web.json_response(self._assistant(assistant_id))

    async def _update_assistant(self, request: web.Request, body: Json) -> web.Response:
        assistant_id = self._known_assistant(request)
        self.assistants[assistant_id] = _configured(self.assistants[assistant_id], body)
        return web.json_response(self._assistant(assistant_id))

    async def _create_thread(self, request: web.Request, _body: Json) -> web.Response:
        thread_id = self._id()
        self.threads[thread_id] = Thread(self._known_assistant(request))
        return web.json_response(self._thread(thread_id))

    async def _read_thread(self, request: web.Request, _body: Json) -> web.Response:
        thread_id = request.match_info["thread"]
        self._known_thread(thread_id)
        return web.json_response(self._thread(thread_id))

    async def _message(self, request: web.Request, body: Json) -> web.StreamResponse:
        thread = self._known_thread(str(body.get("thread_id")))
        if thread.waiting is not None:
            raise Refused(400, "a run of this thread waits for tool outputs")
        if not body.get("content"):
            raise Refused(400, "content: must not be empty")
        reply = self._next()
        if isinstance(reply, RawReply):
            return await send_raw(request, reply)
        if isinstance(reply.fault, HttpError):
            return error(reply.fault)
        self._add(thread, "user", str(body["content"]), body.get("metadata"))
        return await self._stream(request, reply, thread, f"run_{self._id()[-4:]}")

    async def _submit(self, request: web.Request, body: Json) -> web.StreamResponse:
        thread = self._known_thread(request.match_info["thread"])
        waiting, run_id = thread.waiting, request.match_info["run"]
        if waiting is None or waiting["run_id"] != run_id:
            raise Refused(self.status_of_no_wait, f"the run {run_id} does not wait for tool outputs")
        outputs: list[Json] = body.get("tool_outputs") or []
        expected = [call["id"] for call in waiting["tool_calls"]]
        if sorted(str(output.get("tool_call_id")) for output in outputs) != sorted(expected):
            raise Refused(400, f"tool_outputs: the run waits for {expected}")
        if not all(isinstance(output.get("output"), str) for output in outputs):
            raise Refused(400, "tool_outputs: each output is a string")
        reply = self._next()
        if isinstance(reply, RawReply):
            return await send_raw(request, reply)
        if isinstance(reply.fault, HttpError):
            return error(reply.fault)
        thread.waiting = None
        for output in outputs:
            self._add(thread, "tool", output["output"], {"tool_call_id": output["tool_call_id"]})
        return await self._stream(request, reply, thread, run_id)

    async def _stream(
        self, request: web.Request, reply: ScriptedReply, thread: Thread, run_id: str
    ) -> web.StreamResponse:
        listed = events(reply, run_id)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        stop = events_before(reply, len(listed))
        for number, event in enumerate(listed[:stop]):
            if reply.gate is not None and reply.gate.after_events == number:
                await asyncio.Event().wait()
            await response.write(sse(event))
        if reply.fault is not None:
            await break_off(request, response, reply, listed[stop])
            return response
        self._add(thread, "assistant", reply.text, None)
        thread.waiting = listed[-1] if reply.tool_calls else None
        await response.write_eof()
        return response

    def _next(self) -> ScriptedReply | RawReply:
        if not self._replies:
            raise Refused(400, "the script has no more replies")
        return self._replies.popleft()

    def _add(self, thread: Thread, role: str, content: str, metadata: Json | None) -> None:
        thread.messages.append(
            {
                "message_id": self._id(),
                "role": role,
                "content": content,
                "created_at": _CREATED_AT,
                "metadata_": metadata,
            }
        )

    def _known_assistant(self, request: web.Request) -> str:
        assistant_id = request.match_info["assistant"]
        if assistant_id not in self.assistants:
            raise Refused(404, "Assistant not found")
        return assistant_id

    def _known_thread(self, thread_id: str) -> Thread:
        if thread_id not in self.threads:
            raise Refused(404, "Thread not found")
        return self.threads[thread_id]

    def _assistant(self, assistant_id: str) -> Json:
        return {"assistant_id": assistant_id, "created_at": _CREATED_AT, **self.assistants[assistant_id]}

    def _thread(self, thread_id: str) -> Json:
        messages = self.threads[thread_id].messages
        return {"thread_id": thread_id, "created_at": _CREATED_AT, "messages": messages}

    def _id(self) -> str:
        """Return the next id; the same sequence in every test run."""
        self._made += 1
        return str(uuid.UUID(int=self._made))


def _configured(before: Json, body: Json) -> Json:
    tools: list[Json] = body.get("tools") or []
    for tool in tools:
        function: Json = tool.get("function") or {}
        parameters: Json = function.get("parameters") or {}
        if tool.get("type") != "function" or not function.get("name"):
            raise Refused(422, "tools: each is a function with a name")
        if parameters.get("type") != "object":
            raise Refused(422, f"tools: the parameters of {function['name']} are an object")
    known = {name: body[name] for name in ("name", "system_prompt", "tools") if name in body}
    return {**before, **known}


def _masked(path: str) -> str:
    names = {"assistants": "{assistant}", "threads": "{thread}", "runs": "{run}"}
    words = path.removeprefix("/api").split("/")
    return "/".join(
        names[before] if before in names and word not in ("", "messages") else word
        for before, word in zip(["", *words], words, strict=False)
    )
