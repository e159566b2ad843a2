"""The peer: the same run in pydantic-ai behind FastAPI, in one process that stores nothing.

It has its own environment (requirements/bench.txt) and imports nothing of Banksman. `MODEL_URL` is the base
URL of the model server. Run: `uvicorn app:app`
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="sk-bench")
agent = Agent(OpenAIChatModel("scripted/add", provider=provider))
app = FastAPI()


class Chat(BaseModel):
    """The body of a request."""

    content: str


@agent.tool_plain
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


@app.get("/readyz")
async def ready() -> None:
    """Return an empty response: the process accepts requests."""


@app.post("/v1/chat")
async def chat(body: Chat) -> dict[str, str]:
    """Execute a run and return its outcome."""
    result = await agent.run(body.content)
    return {"status": "completed", "content": result.output}
