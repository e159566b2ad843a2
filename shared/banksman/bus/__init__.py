"""The broker: the only code that knows NATS. Everything else speaks of logs, slots, work and buckets."""

import importlib

from banksman.runtime.imports import without

# nats-py imports aiohttp, if installed, for websocket transport, which Banksman does not use.
with without("aiohttp"):
    importlib.import_module("nats.aio.client")
