"""The base of the adapters: one client, repeated requests, and requests without what a model refuses.

The retries of vendors' SDKs are disabled, because they do not know the deadline of the run, and cannot
withdraw the text of a failed attempt that clients have already received.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import ClassVar, Generic, Protocol, TypeVar

from banksman.agent.protocols.base import ModelReply, ModelRequest, updated
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.facts import Facts
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.images import (
    Images,
    concerns_images,
    has_links,
    unsupported,
    with_files,
    with_images,
)
from banksman.agent.providers.profiles import Profile, profile_of, refusals_of
from banksman.agent.providers.refusals import (
    IMAGES,
    RefusedParts,
    refused_form,
    refused_option,
    with_refused,
    without_refused,
)
from banksman.agent.providers.schemas import offered
from banksman.agent.providers.state import opened, origin_of, refuses_state, sealed
from banksman.contracts.errors import ContextOverflow, ProviderFailed, ProviderTimedOut
from banksman.contracts.live_output import ModelPause
from banksman.contracts.messages import Message
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.redaction import Redaction

MAX_DELAY_S = 15.0
"""Maximum seconds between two attempts if the vendor names no time."""
NOTICE_S = 5.0
"""Seconds between two notices of one pause, for clients that connect during it."""

logger = logging.getLogger(__name__)


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
        self._refused = RefusedParts()

    async def complete(
        self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float, wait_s: float | None = None
    ) -> ModelReply:
        """A request that is refused for one of its options is repeated without it, as are later ones.

        Tools that the model's API refuses are left out, which a notice of the reply states. A request that is
        refused for its form is repeated in another, and one that is refused for the opaque state of earlier
        replies or for images without them.
        """
        until = time.monotonic() + deadline_s
        images = self.profile(request.model).images
        accepted: Images = "none" if self.facts(request.model).images is False else images
        messages = await self._with_files(request, with_images(request.messages, accepted), accepted)
        request = updated(request, messages=opened(messages, self.name, self.origin))
        wait_s = self.settings.max_wait_s if wait_s is None else wait_s
        wait_until = asyncio.get_running_loop().time() + wait_s
        while True:
            request = without_refused(request, self._refused.of(request.model))
            tools, notices = offered(request.tools, self.profile(request.model))
            try:
                sent = updated(request, tools=tools)
                reply = await self._with_retries(sent, deltas, deadline_s, wait_until)
                state = sealed(reply.provider_state, self.origin)
                return updated(reply, provider_state=state, notices=(*notices, *reply.notices))
            except ProviderFailed as refusal:
                changed = self._adapted(request, refusal)
                if changed is None:
                    raise
                request = changed
            await deltas.restart()
            deadline_s = max(0.1, until - time.monotonic())

    def _adapted(self, request: ModelRequest, refusal: ProviderFailed) -> ModelRequest | None:
        """Return the request to send after a refusal, which is remembered; None if it names nothing known."""
        model = request.model
        part = self._refused_form(refusal, model, with_tools=bool(request.tools))
        if part is None and refuses_state(refusal, request.messages):
            # Reasoning is valid only after the exact prefix that preceded it, which another prompt, other
            # tools or a compaction change.
            request, part = replace(request, messages=opened(request.messages, self.name, None)), "state"
        elif part:
            self._refused.add(model, part)
        elif option := refused_option(refusal, request.options):
            self._refused.add(model, option)
            part = f"the option {option}"
        elif concerns_images(refusal.message, request.messages):
            # A link is chosen by a tenant, and may be what the error quotes.
            if unsupported(refusal.message) and not has_links(request.messages):
                self._refused.add(model, IMAGES)
            request, part = replace(request, messages=with_images(request.messages, "none")), IMAGES
        if part is None:
            return None
        logger.warning("the model refused %s: %s", part, refusal, extra={"model": model})
        return request

    def _refused_form(
        self, refusal: ProviderFailed | TransientFault, model: str, *, with_tools: bool = True
    ) -> str | None:
        known = refusals_of(self.settings.profiles_file)
        return refused_form(refusal, known, self.profile(model), with_tools=with_tools)

    async def _with_files(
        self, request: ModelRequest, messages: tuple[Message, ...], accepted: Images
    ) -> tuple[Message, ...]:
        documents = self.profile(request.model).documents in ("any", "own" if self.own_api else "any")
        images = accepted != "none" and IMAGES not in self._refused.of(request.model)
        if request.load is None or not (images or documents):
            return messages
        return await with_files(messages, request.load, images=images, documents=documents)

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
            unpaid = fault.status == 402 or profile.is_spent_quota(fault.message)
            if isinstance(fault, TransientFault):
                lasting = unpaid or unsupported(fault.message) or self._refused_form(fault, model)
                if fault.retry_after_s is None and lasting:
                    raise self._gave_up(fault, 1) from fault
            elif unpaid:
                raise self._gave_up(fault, 1) from fault
            elif profile.is_transient(fault.message):
                raise TransientFault(fault.message, status=fault.status) from fault
            raise

    def _gave_up(self, fault: TransientFault | ProviderFailed, number: int) -> ProviderFailed:
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
        file = self.settings.profiles_file
        profile = profile_of(self.entry.base_url, model, self.entry.vendor, file)
        refused = self._refused.of(model)
        return with_refused(profile, refusals_of(file), refused) if refused else profile

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
