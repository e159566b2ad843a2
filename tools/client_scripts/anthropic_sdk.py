"""Anthropic's SDK for Python: its tool loop with a model, then a run of the agent, whose reply it prints.

anthropic_sdk.py GATEWAY MESSAGE, in a directory into which its tool may write.
"""

import sys
from pathlib import Path

from anthropic import Anthropic, beta_tool

GATEWAY, MESSAGE = sys.argv[1:]
LIMIT = 1024


@beta_tool
def write_file(path: str, content: str) -> str:
    """Write a file.

    Args:
        path: Its name.
        content: Its text.
    """
    Path(path).write_text(content, encoding="utf-8")
    return f"{path} has {len(content)} characters."


model = Anthropic(base_url=GATEWAY)
model.beta.messages.tool_runner(
    model="demo",
    max_tokens=LIMIT,
    messages=[{"role": "user", "content": MESSAGE}],
    tools=[write_file],
    stream=True,
).until_done()

agent = Anthropic(base_url=f"{GATEWAY}/context/chat")
with agent.messages.stream(
    model="demo", max_tokens=LIMIT, messages=[{"role": "user", "content": "hello"}]
) as reply:
    print(reply.get_final_text())
