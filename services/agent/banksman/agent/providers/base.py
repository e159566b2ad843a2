"""The interface of a provider, its settings, and the base of the adapters: one client, and retries.

The retries of vendors' SDKs are disabled, because they do not know the deadline of the run, and cannot
withdraw the text of a failed attempt that clients have already received.
"""

from __future__ import annotations

import asyncio
import html
import logging
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import ConfigDict, Field, field_validator

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers.facts import Facts
from banksman.agent.providers.images import (
    Images,
    concerns_images,
    has_links,
    unsupported,
    with_files,
    with_images,
)
from banksman.agent.providers.profiles import Profile, profile_of, read_profiles
from banksman.agent.providers.schemas import offered
from banksman.agent.providers.state import opened, origin_of, refuses_state, sealed
from banksman.contracts.calls import ModelPause, WaitReason
from banksman.contracts.errors import ContextOverflow, ProviderFailed, ProviderTimedOut
from banksman.contracts.messages import Message
from banksman.contracts.model_options import ModelOptions
from banksman.runtime.model_servers import ModelServers, ProviderEntry
from banksman.runtime.redaction import Redaction, redacted

DeltaKind = Literal["message", "reasoning"]
"""
message    text of the reply, including calls as text; a `DeltaFilter` selects the text to publish
reasoning  the model's reasoning, if the vendor returns it
"""


class DeltaSink(Protocol):
    """Receives the pieces of a reply while the model writes it."""

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Receive the next piece. Pieces of one kind are in order and never empty."""
        ...

    async def restart(self) -> None:
        """Discard all pieces: the request is sent again and the reply starts from its beginning."""
        ...

    async def waiting(self, pause: ModelPause) -> None:
        """Learn that the request is sent again after a pause; repeated every `NOTICE_S` seconds of it."""
        ...


class Provider(Protocol):
    """One model API. Safe for any number of concurrent requests."""

    name: str
    """The part of a model's name before the colon. Each reply records it, so that the state of the reply is
    sent only to the provider that wrote it."""

    async def complete(
        self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float, wait_s: float | None = None
    ) -> ModelReply:
        """Send one request to the model and return its complete reply.

        Transient faults (429 with its `Retry-After`, 5xx, broken connections) are retried within `deadline_s`
        seconds; while the vendor accepts no request, for at most `wait_s` seconds, by default
        `max_wait_s`. A request to a silent model is not retried. Cancelling the task closes the connection.

        Raises:
            ProviderFailed: The vendor refused the request, all retries failed, or the deadline passed.
        """
        ...

    def facts(self, model: str) -> Facts:
        """Return what the server told of a model so far; nothing for a vendor that is not asked."""
        ...

    def warm(self) -> None:
        """Import the library and create the client before the first request; this takes up to a second."""
        ...

    async def close(self) -> None:
        """Close the connections. Running requests fail."""
        ...


class ProviderSettings(ModelServers):
    """Addresses and keys of the model APIs, timeouts and retries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: str | None = None
    """`provider:model` of conversations that name none. The command line derives `agent.default_model` and
    `gateway.default_model` from it."""
    profiles_file: Path | None = None
    """A TOML file with differences of vendors and models, which takes precedence over the built-in ones."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to open a connection; a slower attempt fails."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a byte from the model, after which the request fails. Bytes that only keep the
    connection alive count as bytes. The request is not repeated, because the model may still write the reply,
    and the vendor may charge for it."""
    request_timeouts_s: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict[str, float])
    """`request_timeout_s` of single providers and models, by the start of `provider:model`; the longest match
    applies. All models of Backboard have the limit of `backboard`."""
    max_attempts: int = Field(default=5, ge=1, le=20)
    """Maximum requests for one reply, including the first, that fail while the vendor works on them: with a
    transient error, or because the connection breaks. Requests that the vendor does not accept do not count;
    `max_wait_s` limits them."""
    max_wait_s: float = Field(default=300.0, ge=0)
    """Seconds for which a request is repeated while its model is overloaded (503, 529), over its rate (429)
    or unreachable, within the run's own limit. A restart of the agent does not extend them. A model with
    fallback models gets at most 10. 0 fails at once."""
    first_delay_s: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt if the vendor names no time. Later pauses double, up to 15 s."""

    @field_validator("profiles_file")
    @classmethod
    def _readable(cls, file: Path | None) -> Path | None:
        if file is not None:
            read_profiles(file)
        return file

    def silence_s(self, model: str) -> float:
        """Return the seconds for which `provider:model` may send nothing."""
        fitting = [start for start in self.request_timeouts_s if model.startswith(start)]
        return self.request_timeouts_s[max(fitting, key=len)] if fitting else self.request_timeout_s


MAX_DELAY_S = 15.0
"""Maximum seconds between two attempts if the vendor names no time."""
NOTICE_S = 5.0
"""Seconds between two notices of one pause, for clients that connect during it."""

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_WAIT_REASONS: Mapping[int | None, WaitReason] = {
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_MAY_BE_BILLED = frozenset({504, 524})
"""Statuses of a proxy that stopped waiting for the model, which may still write a reply that is billed."""
_MAX_MESSAGE_CHARS = 500
_PAGE = re.compile(r"<!doctype|<html", re.IGNORECASE)
_MARKUP = re.compile(r"<(?:script|style)\b[^<]*(?:<(?!/(?:script|style))[^<]*)*|<[^<>]*>?", re.IGNORECASE)
"""Tags, and scripts and styles with their content."""
_OPTION_WORDS = {
    "response_schema": (
        "response_format",
        "json_schema",
        "output_config.format",
        "output_format",
        "structured",
    ),
    "parallel_tool_calls": ("parallel_tool",),
    "reasoning_effort": ("reasoning", "effort", "thinking"),
    "temperature": ("temperature",),
}
"""The words by which refusals of vendors name an option, by the option."""
_IMAGES, _SUMMARIES = "images", "summaries"
"""What models refuse beside options: images, and summaries of their reasoning."""
_OF_SUMMARIES = re.compile(
    r"reasoning.{0,20}(summary|summaries)|include_?thoughts|thinking is not (enabled|supported)",
    re.IGNORECASE,
)
MAX_REMEMBERED_MODELS = 1_000
"""Maximum number of models whose refused options are remembered: tenants choose the names."""

logger = logging.getLogger(__name__)


class TransientFault(Exception):
    """An attempt failed, and another attempt may succeed."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        reason: WaitReason | None = None,
    ) -> None:
        """`reason` is by default that of the status."""
        self.message = shown_reason(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.reason: WaitReason = reason or _WAIT_REASONS.get(status, "failed")
        super().__init__(self.message)


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class RetryingProvider(ABC, Generic[C]):
    """A `Provider` with one client. Only `make_client` and the attempts import the library of the client."""

    own_api: ClassVar[bool] = False
    """Whether it uses the vendor's own API, not one that several vendors serve."""

    def __init__(self, name: str, settings: ProviderSettings, entry: ProviderEntry) -> None:
        self.name = name
        self.settings = settings
        self.entry = entry
        self._refused: dict[str, frozenset[str]] = {}
        """What models refused, by model."""

    async def complete(
        self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float, wait_s: float | None = None
    ) -> ModelReply:
        """A request that is refused for one of its options is repeated without it, as are later ones.

        Tools that the model's API refuses are left out, which a notice of the reply states. A request that is
        refused for the opaque state of earlier replies, for images or for summaries is repeated without them.
        """
        until = time.monotonic() + deadline_s
        profile = self.profile(request.model)
        tools, notices = offered(request.tools, profile)
        accepted: Images = "none" if self.facts(request.model).images is False else profile.images
        messages = await self._with_files(request, with_images(request.messages, accepted), accepted)
        request = replace(request, messages=opened(messages, self.name, self.origin), tools=tools)
        wait_s = self.settings.max_wait_s if wait_s is None else wait_s
        wait_until = asyncio.get_running_loop().time() + wait_s
        while True:
            request = _without(request, self._refused.get(request.model, frozenset()))
            try:
                reply = await self._with_retries(request, deltas, deadline_s, wait_until)
                state = sealed(reply.provider_state, self.origin)
                return replace(reply, provider_state=state, notices=(*notices, *reply.notices))
            except ProviderFailed as refusal:
                facts = {"model": request.model}
                if self.profile(request.model).reasoning_summary and _refuses_summaries(refusal):
                    logger.warning("the model refused summaries: %s", refusal, extra=facts)
                    self._remember_refused(request.model, _SUMMARIES)
                elif refuses_state(refusal, request.messages):
                    # Reasoning is valid only after the exact prefix that preceded it, which another prompt,
                    # other tools or a compaction change.
                    request = replace(request, messages=opened(request.messages, self.name, None))
                    logger.warning("the model refused earlier reasoning: %s", refusal, extra=facts)
                elif option := _refused_option(refusal, request.options):
                    logger.warning("the model refused the option %s: %s", option, refusal, extra=facts)
                    self._remember_refused(request.model, option)
                elif concerns_images(refusal.message, request.messages):
                    # A link is chosen by a tenant, and may be what the error quotes.
                    if unsupported(refusal.message) and not has_links(request.messages):
                        self._remember_refused(request.model, _IMAGES)
                    request = replace(request, messages=with_images(request.messages, "none"))
                    logger.warning("the model refused the images: %s", refusal, extra=facts)
                else:
                    raise
            await deltas.restart()
            deadline_s = max(0.1, until - time.monotonic())

    async def _with_files(
        self, request: ModelRequest, messages: tuple[Message, ...], accepted: Images
    ) -> tuple[Message, ...]:
        documents = self.profile(request.model).documents in ("any", "own" if self.own_api else "any")
        images = accepted != "none" and _IMAGES not in self._refused.get(request.model, ())
        if request.load is None or not (images or documents):
            return messages
        return await with_files(messages, request.load, images=images, documents=documents)

    def _remember_refused(self, model: str, option: str) -> None:
        self._refused[model] = self._refused.get(model, frozenset()) | {option}
        if len(self._refused) > MAX_REMEMBERED_MODELS:
            del self._refused[next(iter(self._refused))]

    async def _with_retries(
        self, request: ModelRequest, deltas: DeltaSink, deadline_s: float, wait_until: float
    ) -> ModelReply:
        """Repeat a request while it raises `TransientFault` and time and attempts remain."""
        attempt = self.attempts(request, deltas)
        number, failed = 1, 0
        scope = asyncio.timeout(deadline_s)
        try:
            async with scope:
                while True:
                    try:
                        return await self._classified(attempt, request.model)
                    except TransientFault as fault:
                        failed += fault.reason == "failed"
                        delay_s = _delay_s(fault, number, self.settings.first_delay_s)
                        until = min(scope.when() or inf, wait_until if fault.reason != "failed" else inf)
                        exhausted = failed >= self.settings.max_attempts
                        if exhausted or asyncio.get_running_loop().time() + delay_s >= until:
                            raise self._gave_up(fault, number) from fault
                        pause = ModelPause(
                            model=f"{self.name}:{request.model}",
                            reason=fault.reason,
                            error=fault.message,
                            attempt=number,
                            next_attempt_s=delay_s,
                        )
                        facts = {**pause.model_dump(exclude={"error", "reason"}), "status": fault.status}
                        logger.warning("repeating the model request: %s", pause.error, extra=facts)
                    await _rest(pause, deltas)
                    await deltas.restart()
                    number += 1
        except TimeoutError as error:
            if not scope.expired():
                raise
            text = f"no complete reply within {deadline_s:g} s"
            raise ProviderTimedOut(self.name, text, unavailable=True) from error

    async def _classified(self, attempt: Callable[[], Awaitable[ModelReply]], model: str) -> ModelReply:
        """Make one attempt; raise `ContextOverflow` or a lasting failure for an error that means this."""
        try:
            return await attempt()
        except (TransientFault, ProviderFailed) as fault:
            fault.message = self.redaction.of(fault.message)
            fault.args = tuple(self.redaction.of(str(each)) for each in fault.args)
            profile = self.profile(model)
            if profile.is_overflow(fault.status, fault.message):
                raise ContextOverflow(self.name, fault.message, status=fault.status) from fault
            if isinstance(fault, TransientFault) and fault.retry_after_s is None:
                if profile.is_spent_quota(fault.message) or unsupported(fault.message):
                    raise self._gave_up(fault, 1) from fault
            raise

    def _gave_up(self, fault: TransientFault, number: int) -> ProviderFailed:
        text = fault.message if number == 1 else f"{fault.message} ({number} attempts)"
        return ProviderFailed(self.name, text, status=fault.status, unavailable=True)

    @cached_property
    def redaction(self) -> Redaction:
        """Removes the key of the entry: a tenant's key is no secret of this process."""
        return Redaction((self.entry.key,) if self.entry.key else ())

    @cached_property
    def origin(self) -> str:
        """The name of this provider at its address, for the states of replies."""
        return origin_of(self.name, self.entry.base_url)

    def facts(self, model: str) -> Facts:
        return Facts()

    def profile(self, model: str) -> Profile:
        profile = profile_of(self.entry.base_url, model, self.entry.vendor, self.settings.profiles_file)
        if _SUMMARIES in self._refused.get(model, ()):
            return profile.model_copy(update={"reasoning_summary": False})
        return profile

    def silence_s(self, model: str) -> float:
        return self.settings.silence_s(f"{self.name}:{model}")

    def silent(self, model: str) -> ProviderFailed:
        """Return the failure of a request whose reply paused for longer than `model` may be silent.

        It is `unavailable`, so that another model is tried, and not transient: this model may still write.
        """
        text = f"{model} was silent for {self.silence_s(model):g} s"
        return ProviderFailed(self.name, text, unavailable=True)

    def warm(self) -> None:
        _ = self.client

    async def close(self) -> None:
        if "client" in self.__dict__:
            await self.client.close()

    @cached_property
    def client(self) -> C:
        return self.make_client()

    @abstractmethod
    def make_client(self) -> C:
        """Import the library and create its client, without retries of its own."""

    @abstractmethod
    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """Return a function that sends the request once each time it is called.

        Raises:
            TransientFault: The function failed, and another attempt may succeed.
            ProviderFailed: The vendor refused the request.
        """


def _delay_s(fault: TransientFault, number: int, first_delay_s: float) -> float:
    """Return the pause before the next attempt, randomized so that agents do not retry at the same time.

    The pause is the vendor's time plus up to 10 %, and at least 50 to 100 % of a time that doubles: a server
    that always names a short time is not flooded with requests.
    """
    # The exponent is bounded: a number with thousands of digits is no float.
    own_s = min(MAX_DELAY_S, first_delay_s * 2 ** min(number - 1, 32)) * random.uniform(0.5, 1.0)
    return max(own_s, (fault.retry_after_s or 0.0) * random.uniform(1.0, 1.1))


async def _rest(pause: ModelPause, deltas: DeltaSink) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + pause.next_attempt_s
    while (left_s := until - loop.time()) > 0:
        await deltas.waiting(pause.model_copy(update={"next_attempt_s": round(left_s, 3)}))
        await asyncio.sleep(min(left_s, NOTICE_S))


def status_fault(
    provider: str, status: int, message: str, headers: Mapping[str, str]
) -> TransientFault | ProviderFailed:
    """Map an error status to an exception. The header `x-should-retry` of the vendors takes precedence."""
    transient = status in _TRANSIENT_STATUSES or (status >= 500 and status not in _MAY_BE_BILLED)
    if headers.get("x-should-retry") in ("true", "false"):
        transient = headers["x-should-retry"] == "true"
    if transient:
        return TransientFault(message, status=status, retry_after_s=retry_after_s(headers))
    text = shown_reason(message)
    return ProviderFailed(provider, text, status=status, unavailable=status in _MAY_BE_BILLED)


def shown_reason(message: str) -> str:
    """Return the message of a server without secrets and in at most 500 characters, a page as its text."""
    if _PAGE.search(message):
        message = html.unescape(" ".join(_MARKUP.sub(" ", message).split()))
    return redacted(message)[:_MAX_MESSAGE_CHARS]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in `retry-after-ms` or `retry-after` (seconds or a date); None if missing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    return _until(value) if seconds is None and value else seconds


def _refuses_summaries(refusal: ProviderFailed) -> bool:
    """Return whether summaries are refused, as for organisations that the vendor has not verified."""
    return refusal.status in (400, 403) and _OF_SUMMARIES.search(refusal.message) is not None


def _refused_option(refusal: ProviderFailed, options: ModelOptions) -> str | None:
    """Return the option of a request that a refusal names; None if it names none."""
    if refusal.status not in (400, 422):
        return None
    text = str(refusal).lower()
    return next(
        (
            option
            for option, words in _OPTION_WORDS.items()
            if getattr(options, option) is not None and any(word in text for word in words)
        ),
        None,
    )


def _without(request: ModelRequest, refused: frozenset[str]) -> ModelRequest:
    """Return the request without the options and images that its model refused."""
    if "response_schema" in refused:
        request = instructed(request)
    if _IMAGES in refused:
        request = replace(request, messages=with_images(request.messages, "none"))
    options = refused - {_IMAGES, _SUMMARIES}
    given = {option: None for option in options if getattr(request.options, option) is not None}
    return replace(request, options=request.options.model_copy(update=given)) if given else request


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # `OverflowError` for a number that is no C integer.
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())
