"""Call the gateway with OpenAI's SDK, like any OpenAI client; the request is forwarded unchanged.

Run it against `banksman up`, after `.venv/bin/pip install openai`; the demo model replies if no upstream is
configured:

    .venv/bin/python examples/openai_passthrough.py "Say hello"

Set `OPENAI_BASE_URL` to use a gateway other than http://127.0.0.1:8080/v1, `OPENAI_API_KEY` to your token,
and `OPENAI_MODEL` to a model (default: the first model that the gateway lists).
"""

from __future__ import annotations

import os
import sys

from openai import APIConnectionError, DefaultHttpxClient, OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "none-needed-on-loopback")


def main(text: str) -> int:
    with OpenAI(
        base_url=BASE_URL, api_key=API_KEY, http_client=DefaultHttpxClient(trust_env=False)
    ) as client:
        model = os.environ.get("OPENAI_MODEL") or next(iter(client.models.list())).id
        chunks = client.chat.completions.create(
            model=model,
            messages=[
                {"role": "system", "content": "Reply in one sentence."},
                {"role": "user", "content": text},
            ],
            stream=True,
        )
        for chunk in chunks:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
        print()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(" ".join(sys.argv[1:]) or "Say hello"))
    except APIConnectionError:
        sys.exit(f"no gateway at {BASE_URL}; set OPENAI_BASE_URL to its address")
