"""Bounds what the JSON of one tenant costs the process that serves all.

The cost of JSON is counted before it is parsed, and charged to the tenant. JSON whose number of values only
a long scan can count is scanned in another process.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

from banksman.contracts.errors import BadInput
from banksman.contracts.json_text import MAX_VALUES, CheckedJson, most_values
from banksman.gateway.operation.body_process import CHECK, CHECK_LARGE, FIELDS, forwarded_fields
from banksman.quotas.rates import Rates
from banksman.runtime.limited_processes import LimitedProcesses, LimitExceeded, ProcessLimits
from banksman.runtime.scope import Scoped

VALUE_BYTES = 128
"""Bytes that one value counts: parsing and checking it takes as long as that of so much text."""
FORWARDED_PART = 4
"""A body that is forwarded counts as a fourth of its bytes, because it is not parsed here."""
INLINE_BYTES = 64 * 1024
"""Bytes of a forwarded body that are parsed in this process."""
LIMITS = ProcessLimits(cpu_s=2.0)


def values_cost(data: bytes) -> int:
    """Return the bytes that the values of a JSON text count in addition to its own."""
    return VALUE_BYTES * min(most_values(data), MAX_VALUES)


class JsonIntake(Scoped):
    """Admits JSON to be parsed. The end of its context ends its processes."""

    def __init__(self, bytes_per_s: float) -> None:
        """Allow each tenant `bytes_per_s` of JSON, and four times as many at once."""
        self._rates = Rates(bytes_per_s)
        self._processes = LimitedProcesses("banksman.gateway.operation.body_process", LIMITS)

    async def admit(self, payer: str, data: bytes, *, what: str = "body", large: bool = False) -> CheckedJson:
        """Charge `payer` for JSON, and return it with the mark that the number of its values is checked.

        Args:
            payer: A tenant; for clients without one, their address.
            data: The JSON, which may be invalid.
            what: The name of the JSON in errors.
            large: Whether the operation declares a large body, which may have `LARGE_VALUES`.

        Raises:
            TooManyRequests: The tenant has exceeded its rate.
            BadInput: The JSON has too many values, or is invalid.
        """
        # Refuses a flood before its bytes are scanned.
        self._rates.check(payer, 0)
        values = most_values(data)
        self._rates.check(payer, len(data) + values_cost(data))
        if values > MAX_VALUES:
            await self._in_process(payer, CHECK_LARGE if large else CHECK, data, what)
        return CheckedJson(data)

    async def forwarded_fields(self, payer: str, body: bytes) -> dict[str, Any]:
        """Return the fields of a forwarded body that decide where it goes; raises as `admit`."""
        self._rates.check(payer, len(body) // FORWARDED_PART)
        if len(body) <= INLINE_BYTES and most_values(body) <= MAX_VALUES:
            return forwarded_fields(body)
        return await self._in_process(payer, FIELDS, body, "body")

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._processes)

    async def _in_process(self, payer: str, task: bytes, data: bytes, what: str) -> dict[str, Any]:
        try:
            async with self._processes.turn(payer):
                reply = await self._processes.exchange(task, data)
        except LimitExceeded as limit:
            expected = f"JSON that can be checked in {LIMITS.cpu_s:g} s ({limit})"
            raise BadInput(what, None, expected) from limit
        if not reply.startswith(b"{"):
            raise BadInput(what, None, reply.decode())
        return json.loads(reply)
