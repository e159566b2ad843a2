"""The broker: the only code that knows NATS. All other code uses logs, slots, work queues and buckets."""

import importlib

from banksman.runtime.imports import without

# nats-py imports aiohttp, if installed, for websocket transport, which Banksman does not use.
with without("aiohttp"):
    importlib.import_module("nats.aio.client")
