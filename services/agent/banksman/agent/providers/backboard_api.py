"""The methods of Backboard's SDK that the adapter uses, with types and with our exceptions.

Importing this module imports the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, contextmanager
from json import JSONDecodeError
from typing import Any, NoReturn, cast

import httpx

# The package has annotations but neither stubs nor a `py.typed` marker.
from backboard import BackboardAPIError, BackboardClient  # pyright: ignore[reportMissingTypeStubs]
from pydantic import ValidationError

from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.faults import TransientFault, status_fault
from banksman.agent.providers.streams import IDENTITY, bounded, check_head, with_pieces
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.wire import JsonObject
from banksman.library_internals.httpcore_client import bound_responses
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.tracing import outgoing

MESSAGE_IDS = "banksman_message_ids"
"""The field of a message's metadata with the ids of the log's messages that it contains."""


class BackboardApi:
    """A client with one connection pool for one address.

    Each method raises `TransientFault` if another attempt may succeed, `ProviderFailed` if it will not.
    """

    def __init__(self, provider: str, settings: ProviderSettings, entry: ProviderEntry) -> None:
        bound_responses("httpcore")
        self._provider = provider
        self._silence_s = settings.silence_s(provider)
        self._client = _Client(provider, settings, entry, self._silence_s)

    async def close(self) -> None:
        await self._client.aclose()

    async def create_assistant(self, name: str, system: str, tools: list[JsonObject]) -> str:
        """Create an assistant and return its id. Without tools, the request has no `tools` field (R57)."""
        with self._faults():
            assistant = await self._client.create_assistant(name, system_prompt=system, tools=_sdk(tools))
            return str(assistant.assistant_id)

    async def update_assistant(self, assistant_id: str, system: str, tools: list[JsonObject]) -> None:
        """Replace an assistant's prompt and tools; an empty list removes the tools (R57, R58)."""
        with self._faults():
            await self._client.update_assistant(assistant_id, system_prompt=system, tools=_sdk(tools))

    async def create_thread(self, assistant_id: str) -> str:
        with self._faults():
            return str((await self._client.create_thread(assistant_id)).thread_id)

    async def message_ids(self, thread_id: str) -> frozenset[str]:
        """Return the ids of the log's messages that `send_message` sent to a thread."""
        with self._faults():
            thread = await self._client.get_thread(thread_id)
        sent = (message.metadata_ or {} for message in thread.messages)
        return frozenset(str(id) for metadata in sent for id in metadata.get(MESSAGE_IDS, ()))

    async def send_message(
        self, thread_id: str, text: str, message_ids: Iterable[str], model: str
    ) -> AsyncGenerator[JsonObject]:
        """Add a message to a thread and yield the events of the run that replies to it.

        `message_ids` are those of the log's messages that the text contains. `model` is `vendor/model`, or
        the name of a model without a vendor.
        """
        vendor, slash, name = model.partition("/")
        ids = list(message_ids)
        with self._faults():
            events = await self._client.send_message(
                text,
                thread_id=thread_id,
                llm_provider=vendor if slash else None,
                model_name=name if slash else model,
                metadata={MESSAGE_IDS: ids} if ids else None,
                stream=True,
            )
            async for event in _events(events):
                yield event

    async def submit(
        self, thread_id: str, run_id: str, outputs: dict[str, str]
    ) -> AsyncGenerator[JsonObject]:
        """Submit the outputs that a run waits for, by call id, and yield its further events (R49)."""
        listed = [{"tool_call_id": call_id, "output": output} for call_id, output in outputs.items()]
        with self._faults():
            events = await self._client.submit_tool_outputs(thread_id, run_id, _sdk(listed), stream=True)
            async for event in _events(events):
                yield event

    @contextmanager
    def _faults(self) -> Generator[None]:
        try:
            yield
        except BackboardAPIError as error:
            raise self._fault(error) from error
        except (JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise TransientFault(f"the response broke off: {error}") from error
        except ValidationError as error:
            raise ProviderFailed(self._provider, f"the response has an unknown form: {error}") from error

    def _fault(self, error: BackboardAPIError) -> Exception:
        """Map an error of the SDK. Without a status it is transient, except for silence."""
        status: int | None = getattr(error, "status_code", None)
        response: httpx.Response | None = getattr(error, "response", None)
        if isinstance(error.__context__, httpx.ReadTimeout):
            text = f"the model was silent for {self._silence_s:g} s"
            return ProviderFailed(self._provider, text, unavailable=True)
        if status is None or response is None:
            unreachable = isinstance(error.__context__, httpx.ConnectError | httpx.ConnectTimeout)
            return TransientFault(str(error), reason="unreachable" if unreachable else "failed")
        return status_fault(self._provider, status, str(error), response.headers)


class _Client(BackboardClient):
    def __init__(
        self, provider: str, settings: ProviderSettings, entry: ProviderEntry, silence_s: float
    ) -> None:
        # The SDK requires a key, and has one timeout for connecting and reading.
        super().__init__(entry.key or "none", entry.base_url)
        self._client.timeout = httpx.Timeout(silence_s, connect=settings.connect_timeout_s)
        self._client.headers["Accept-Encoding"] = IDENTITY
        self._client.event_hooks["request"].append(_continue_trace)
        self._client.event_hooks["response"].append(self._bound)
        self._provider = provider

    async def _bound(self, response: httpx.Response) -> None:
        check_head(self._provider, response.status_code, response.headers)
        stream = cast(httpx.AsyncByteStream, response.stream)
        pieces = bounded(self._provider, stream)
        response.stream = with_pieces(stream, pieces, httpx.AsyncByteStream)

    async def _handle_error_response(self, response: httpx.Response) -> NoReturn:
        # The SDK reads the message from the body, which is not loaded yet if the request is a streamed one.
        await response.aread()
        await super()._handle_error_response(response)


async def _continue_trace(request: httpx.Request) -> None:
    request.headers.update(outgoing())


async def _events(events: object) -> AsyncGenerator[JsonObject]:
    async with aclosing(cast("AsyncGenerator[JsonObject]", events)) as open_events:
        async for event in open_events:
            yield event


def _sdk(value: object) -> Any:
    """Cast plain objects for the SDK: the types of its parameters are invariant lists of unions."""
    return value
