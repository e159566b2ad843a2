"""The broker: the only code that knows NATS. All other code uses logs, slots, work queues and buckets.

- This folder: one connection, requests, durable publishes, reads of streams, dead letters, secrets.
- `queues`: work queues, and how a handled message is settled.
- `storage`: event logs, buckets, objects, write-once slots, leases.
- `control_plane`: handlers of requests that a service declares with FastStream.
"""

import importlib

from banksman.library_internals.python_imports import without

with without("aiohttp"):
    importlib.import_module("nats.aio.client")
