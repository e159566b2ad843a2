"""The broker: the only code that knows NATS. Everything else speaks of logs, slots, work and buckets."""

import importlib

from banksman.runtime.imports import without

# nats-py imports aiohttp, if it is installed, for connections over websockets. No connection of ours is one.
with without("aiohttp"):
    importlib.import_module("nats.aio.client")
