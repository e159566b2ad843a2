"""A tool that models may call; it always returns sunny weather.

Run it in the directory of `banksman up`:

    .venv/bin/python examples/weather_tool.py

Then ask for the weather. If you start it several times, the processes share the calls. Elsewhere, set
`NATS_URL` and `NATS_SEED_FILE` to your NATS server and key.
"""

from __future__ import annotations

import random
import sys
from typing import Annotated

from pydantic import Field

from banksman.sdk import BanksmanError, ToolServer, tool


@tool(category="weather", idempotent=True)
def get_current_weather(location: Annotated[str, Field(min_length=1)]) -> dict[str, object]:
    """Get the current weather for a location.

    Args:
        location: City and state or country, such as "San Francisco, CA".
    """
    return {
        "location": location,
        "condition": "Sunny",
        "temperature": random.randint(65, 75),
        "unit": "fahrenheit",
    }


if __name__ == "__main__":
    print("serving get_current_weather; Ctrl-C ends it")
    try:
        ToolServer("weather").run()
    except BanksmanError as error:
        sys.exit(str(error))
