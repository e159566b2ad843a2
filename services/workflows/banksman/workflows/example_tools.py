"""The mock weather tool, served over the public SDK. A process of its own would cost 40 MiB.

`examples/weather_tool.py` is the same tool as a program; both serve it under one name and share its calls.
"""

from __future__ import annotations

import logging
import random
from typing import Annotated

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.deployment.users import EXAMPLE_SERVER
from banksman.sdk import RemoteError, ToolServer, tool

logger = logging.getLogger(__name__)

# Described here and not in the docstring, whose parser would cost each process of this service 3 MiB.
Location = Annotated[
    str, Field(min_length=1, description='City and state or country, such as "San Francisco, CA".')
]


@tool(category="weather", idempotent=True)
def get_current_weather(location: Location) -> dict[str, object]:
    """Get the current weather for a location."""
    return {
        "location": location,
        "condition": "Sunny",
        "temperature": random.randint(65, 75),
        "unit": "fahrenheit",
    }


async def serve_example_tools(nats: NatsSettings) -> None:
    """Serve the tools that this module registered when it was loaded, until cancelled (R59, R61).

    Raises:
        Unavailable: NATS or the registry cannot be reached.
    """
    try:
        await ToolServer(EXAMPLE_SERVER, (get_current_weather,), nats=nats, drain_s=0.0).serve()
    except RemoteError as refused:
        logger.warning("the example tools are not served: %s", refused)
