from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.support.model_server import ModelServer

TOOLS: dict[str, tuple[str, ...]] = {
    "bash": ("command",),
    "read_file": ("path",),
    "write_file": ("path", "content"),
    "web_fetch": ("url",),
    "get_current_weather": ("location",),
}
PAGE = "<h1>A page</h1>"


def schema(fields: tuple[str, ...]) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in fields}
    return {"type": "object", "properties": properties, "required": list(fields)}


@dataclass
class Workspace:
    """Replaces the tools: files in memory, and results like those of a tool-runner."""

    files: dict[str, str] = field(default_factory=lambda: {"b.md": "two\nlines", "a.txt": "alpha"})
    override: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Results that replace the real ones, by tool name."""

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name in self.override:
            return self.override[name]
        match name:
            case "bash":
                return self._bash(arguments["command"])
            case "read_file":
                content = self.files.get(arguments["path"])
                missing = {"success": False, "error": f"{arguments['path']} does not exist"}
                return missing if content is None else {"success": True, "content": content}
            case "write_file":
                self.files[arguments["path"]] = arguments["content"]
                return {"success": True, "message": f"wrote {arguments['path']}"}
            case "web_fetch":
                return {"success": True, "status": 200, "content": PAGE}
            case _:
                return {"success": True, "location": arguments["location"], "condition": "Sunny"}

    def _bash(self, command: str) -> dict[str, Any]:
        if command == "ls":
            listing = "".join(f"{name}\n" for name in sorted(self.files))
            return {"success": True, "exit_code": 0, "stdout": listing, "stderr": ""}
        if command == "false":
            return {"success": False, "exit_code": 1, "stdout": "", "stderr": "no luck\n"}
        return {"success": True, "exit_code": 0, "stdout": f"ran {command}\n", "stderr": ""}


@dataclass
class Exchange:
    """The outcome of one request."""

    reply: str
    rounds: list[list[tuple[str, dict[str, Any]]]]
    """Calls of each reply."""


class Agent(Protocol):
    """A small agent loop for one tool protocol that keeps its conversation across requests."""

    workspace: Workspace

    async def send(self, request: str) -> Exchange: ...


class OpenAIAgent:
    def __init__(self, client: AsyncOpenAI, workspace: Workspace) -> None:
        self.client = client
        self.workspace = workspace
        self.messages: list[Any] = []
        self.options: dict[str, Any] = {
            "tools": [
                {"type": "function", "function": {"name": name, "parameters": schema(fields)}}
                for name, fields in TOOLS.items()
            ]
        }

    async def send(self, request: str) -> Exchange:
        self.messages.append({"role": "user", "content": request})
        exchange = Exchange("", [])
        while True:
            completion = await self.client.chat.completions.create(
                model="demo", messages=self.messages, **self.options
            )
            message = completion.choices[0].message
            self.messages.append(message.to_dict())
            if not message.tool_calls:
                exchange.reply = message.content or ""
                return exchange
            exchange.rounds.append([])
            for call in message.tool_calls:
                assert call.type == "function"
                arguments = json.loads(call.function.arguments)
                exchange.rounds[-1].append((call.function.name, arguments))
                result = json.dumps(self.workspace.call(call.function.name, arguments))
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class AnthropicAgent:
    def __init__(self, client: AsyncAnthropic, workspace: Workspace) -> None:
        self.client = client
        self.workspace = workspace
        self.messages: list[Any] = []
        self.tools: list[Any] = [
            {"name": name, "input_schema": schema(fields)} for name, fields in TOOLS.items()
        ]

    async def send(self, request: str) -> Exchange:
        self.messages.append({"role": "user", "content": request})
        exchange = Exchange("", [])
        while True:
            async with self.client.messages.stream(
                model="demo", messages=self.messages, max_tokens=1000, tools=self.tools
            ) as stream:
                message = await stream.get_final_message()
            self.messages.append(
                {"role": "assistant", "content": [block.to_dict() for block in message.content]}
            )
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                exchange.reply = "".join(block.text for block in message.content if block.type == "text")
                return exchange
            exchange.rounds.append([(call.name, dict(call.input)) for call in calls])
            results = [self._result(call.id, call.name, dict(call.input)) for call in calls]
            self.messages.append({"role": "user", "content": results})

    def _result(self, call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = self.workspace.call(name, arguments)
        failed = not result["success"]
        as_text = name in ("read_file", "web_fetch")
        content = result.get("error", result.get("content")) if as_text else json.dumps(result)
        return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}


class JsonTextAgent:
    def __init__(self, client: AsyncOpenAI, workspace: Workspace) -> None:
        self.client = client
        self.workspace = workspace
        described = "\n".join(f"- {name}: {', '.join(fields)}" for name, fields in TOOLS.items())
        prompt = (
            f"You have these tools:\n{described}\nTo call one, output only this JSON object:\n"
            '{"tool": "name", "parameters": {}, "terminate": false}'
        )
        self.messages: list[Any] = [{"role": "system", "content": prompt}]

    async def send(self, request: str) -> Exchange:
        self.messages.append({"role": "user", "content": request})
        exchange = Exchange("", [])
        while True:
            completion = await self.client.chat.completions.create(model="demo", messages=self.messages)
            text = completion.choices[0].message.content or ""
            self.messages.append({"role": "assistant", "content": text})
            if not text.startswith("{"):
                exchange.reply = text
                return exchange
            call = json.loads(text)
            assert set(call) == {"tool", "parameters", "terminate"}
            assert call["terminate"] is False
            exchange.rounds.append([(call["tool"], call["parameters"])])
            result = json.dumps(self.workspace.call(call["tool"], call["parameters"]))
            self.messages.append({"role": "user", "content": f"Tool result for {call['tool']}:\n{result}"})


PROTOCOLS = ("openai", "anthropic", "json_text")


@pytest.fixture
def agent_of(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic
) -> Callable[[Literal["openai", "anthropic", "json_text"]], Agent]:
    def make(protocol: Literal["openai", "anthropic", "json_text"]) -> Agent:
        match protocol:
            case "openai":
                return OpenAIAgent(openai, Workspace())
            case "anthropic":
                return AnthropicAgent(anthropic, Workspace())
            case "json_text":
                return JsonTextAgent(openai, Workspace())

    return make


@pytest.fixture(params=PROTOCOLS)
def agent(request: pytest.FixtureRequest, agent_of: Callable[[Any], Agent]) -> Agent:
    return agent_of(request.param)


def flat(exchange: Exchange) -> list[tuple[str, dict[str, Any]]]:
    return [call for made in exchange.rounds for call in made]


SENTENCES: list[Any] = [
    ("run `ls`", [("bash", {"command": "ls"})], ["exit code 0", "a.txt"]),
    ("Please run uname -a.", [("bash", {"command": "uname -a"})], ["ran uname -a"]),
    ("Run ls -la and explain the result.", [("bash", {"command": "ls -la"})], ["exit code 0"]),
    ("```\nfirst\nsecond\n```", [("bash", {"command": "first\nsecond"})], ["exit code 0"]),
    ("List the files, please.", [("bash", {"command": "ls"})], ["2 entries", "`b.md`"]),
    ("list the files in src", [("bash", {"command": "ls src"})], ["`src` holds"]),
    ("read a.txt", [("read_file", {"path": "a.txt"})], ["alpha"]),
    (
        "Could you read the file a.txt and tell me what it says?",
        [("read_file", {"path": "a.txt"})],
        ["alpha"],
    ),
    ("summarise b.md", [("read_file", {"path": "b.md"})], ["2 lines, 2 words, 9 characters", "two"]),
    (
        "write hello world to notes.txt",
        [("write_file", {"path": "notes.txt", "content": "hello world"})],
        ["11 characters", "`notes.txt`"],
    ),
    (
        'create a file notes.txt with "one, then two; read" and read it back',
        [
            ("write_file", {"path": "notes.txt", "content": "one, then two; read"}),
            ("read_file", {"path": "notes.txt"}),
        ],
        ["one, then two; read"],
    ),
    ("fetch http://127.0.0.1:1/a?b=c", [("web_fetch", {"url": "http://127.0.0.1:1/a?b=c"})], [PAGE]),
    (
        "Fetch https://example.com/ as markdown, then save it to page.html.",
        [
            ("web_fetch", {"url": "https://example.com/", "format": "markdown"}),
            ("write_file", {"path": "page.html", "content": PAGE}),
        ],
        ["I saved the output to `page.html`"],
    ),
    ("What is the weather in Paris?", [("get_current_weather", {"location": "Paris"})], ["Paris", "Sunny"]),
    ("delete a.txt", [("bash", {"command": "rm -- a.txt"})], ["exit code 0"]),
    (
        'use the tool get_current_weather with {"location": "Oslo"}',
        [("get_current_weather", {"location": "Oslo"})],
        ["Oslo"],
    ),
    (
        "run `one`; read a.txt and then run `two`",
        [("bash", {"command": "one"}), ("read_file", {"path": "a.txt"}), ("bash", {"command": "two"})],
        ["ran one", "alpha", "ran two"],
    ),
    ("Run `one`, then `two`.", [("bash", {"command": "one"}), ("bash", {"command": "two"})], ["ran two"]),
]


@pytest.mark.parametrize(("request_text", "calls", "words"), SENTENCES)
async def test_plain_request_leads_to_calls_and_a_reply_with_their_results(
    server: ModelServer, agent: Agent, request_text: str, calls: Any, words: list[str]
):
    exchange = await agent.send(request_text)
    assert flat(exchange) == calls
    for expected in [*words, "demo model"]:
        assert expected in exchange.reply
    assert server.violations == []


async def test_report_contains_the_listing_and_is_read_back(agent: Agent):
    """R76: each result is in the next model request."""
    exchange = await agent.send(
        "list the files, then write a short report about them to report.md, and read it back"
    )
    names = [name for name, _ in flat(exchange)]
    assert names == ["bash", "write_file", "read_file"]
    report = agent.workspace.files["report.md"]
    assert report.startswith("# Report")
    assert "2 entries" in report
    assert "- a.txt" in report
    assert "- b.md" in report
    assert report.rstrip() in exchange.reply


@pytest.mark.parametrize(
    ("request_text", "parallel"),
    [
        ("run `one` and `two`", 2),
        ("read a.txt and b.md", 2),
        ("read `a.txt` and `b.md`", 2),
        ("read a.txt, fetch http://h/ and list the files", 3),
        ("read a.txt, then read b.md", 1),
        ("write x to a.txt and read a.txt", 1),
    ],
)
async def test_independent_calls_are_made_in_parallel(
    agent_of: Callable[[Any], Agent], request_text: str, parallel: int
):
    for protocol in ("openai", "anthropic"):
        exchange = await agent_of(protocol).send(request_text)
        assert len(exchange.rounds[0]) == parallel
    exchange = await agent_of("json_text").send(request_text)
    assert {len(made) for made in exchange.rounds} == {1}


async def test_parallel_calls_can_be_disabled(openai: AsyncOpenAI):
    agent = OpenAIAgent(openai, Workspace())
    agent.options["parallel_tool_calls"] = False
    exchange = await agent.send("run `one` and `two`")
    assert [len(made) for made in exchange.rounds] == [1, 1]
    assert "ran one" in exchange.reply
    assert "ran two" in exchange.reply


async def test_later_request_reads_back_the_last_file(agent: Agent):
    await agent.send("write hello to notes.txt")
    exchange = await agent.send("Now read it back.")
    assert flat(exchange) == [("read_file", {"path": "notes.txt"})]
    assert "hello" in exchange.reply
    assert "wrote" not in exchange.reply


async def test_nonzero_exit_code_is_reported_and_later_steps_run(agent: Agent):
    exchange = await agent.send("run `false`, then run `two`")
    assert len(flat(exchange)) == 2
    assert "exit code 1" in exchange.reply
    assert "no luck" in exchange.reply
    assert "ran two" in exchange.reply


async def test_missing_file_skips_the_remaining_steps(agent: Agent):
    exchange = await agent.send("read none.txt, then run `two`")
    assert flat(exchange) == [("read_file", {"path": "none.txt"})]
    assert "none.txt does not exist" in exchange.reply
    assert "did not run `two`" in exchange.reply


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rejected", "was rejected"),
        ("denied", "not allowed by the policy"),
        ("timeout", "took too long"),
        ("unknown_outcome", "its outcome is unknown"),
        ("tool_error", "failed"),
    ],
)
async def test_refused_or_failed_call_is_reported_with_its_reason(agent: Agent, kind: str, words: str):
    result = {"success": False, "error_kind": kind, "error": "Reason 17."}
    agent.workspace.override = {"write_file": result}
    exchange = await agent.send("write hello to notes.txt and read it back")
    assert len(flat(exchange)) == 1
    assert words in exchange.reply
    assert "Reason 17." in exchange.reply
    assert "did not read `notes.txt`" in exchange.reply


async def test_tool_that_is_not_offered_is_not_called(openai: AsyncOpenAI):
    """R57: without tools the model replies in text only."""
    completion = await openai.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "run `ls`"}]
    )
    message = completion.choices[0].message
    assert message.tool_calls is None
    assert "`bash`" in (message.content or "")
    assert "no such tool" in (message.content or "")


@pytest.mark.parametrize("request_text", ["hello", "what can you do?", "   ", "x " * 10_000, "`" * 5_000])
async def test_unknown_request_returns_help(openai: AsyncOpenAI, request_text: str):
    agent = OpenAIAgent(openai, Workspace())
    exchange = await agent.send(request_text)
    assert "no language model" in exchange.reply
    assert "- list the files" in exchange.reply


async def test_a_title_quotes_the_first_message(openai: AsyncOpenAI) -> None:
    """The gateway requests a title for each conversation."""
    excerpt = "User:\nRun `ls -la`, please.\n\nAssistant:\nI will run `ls -la`."
    reply = await openai.chat.completions.create(
        model="demo",
        messages=[
            {"role": "system", "content": "Write a title for the conversation that follows."},
            {"role": "user", "content": excerpt},
        ],
    )
    assert reply.choices[0].message.content == "Run ls -la, please."


async def test_unknown_clause_is_named_in_the_reply(agent: Agent):
    exchange = await agent.send("list the files; draw my portrait")
    assert len(flat(exchange)) == 1
    assert "I did not understand: `draw my portrait`" in exchange.reply


async def test_reading_back_without_a_file_is_refused(agent: Agent):
    exchange = await agent.send("read it back")
    assert exchange.rounds == []
    assert "which file" in exchange.reply


async def test_diagram_request_returns_mermaid(agent: Agent):
    exchange = await agent.send("Draw a diagram, please")
    assert "```mermaid\nflowchart" in exchange.reply


async def test_first_reply_with_calls_names_the_demo_model(openai: AsyncOpenAI):
    agent = OpenAIAgent(openai, Workspace())
    await agent.send("list the files, then read a.txt")
    texts = [message.get("content") for message in agent.messages if message["role"] == "assistant"]
    assert texts[0].startswith("I am the demo model")
    assert "list the files and read `a.txt`" in texts[0]
    assert not texts[1]


async def test_quoted_text_keeps_its_code_fences(agent: Agent):
    agent.workspace.files["f.md"] = "```\ninner\n```"
    exchange = await agent.send("read f.md")
    assert "````\n```\ninner\n```\n````" in exchange.reply


@pytest.mark.parametrize(
    ("request_text", "path"),
    [
        ("Write notes.md with three ideas for a weekend project.", "notes.md"),
        ("write 3 ideas for a birthday party to party.txt", "party.txt"),
    ],
)
async def test_as_many_ideas_are_written_as_the_user_requests(
    agent: Agent, request_text: str, path: str
) -> None:
    exchange = await agent.send(request_text)

    [[(tool, arguments)]] = exchange.rounds
    assert (tool, arguments["path"]) == ("write_file", path)
    lines = arguments["content"].splitlines()
    assert [line[:2] for line in lines] == ["1.", "2.", "3."]
    assert all(len(line.split()) > 4 for line in lines)


async def test_ideas_without_a_file_are_the_reply(agent: Agent) -> None:
    exchange = await agent.send("Give me two ideas for a garden!")

    assert exchange.rounds == []
    assert exchange.reply.startswith("1. ") and "2. " in exchange.reply and "3. " not in exchange.reply
    assert "a garden" in exchange.reply


async def test_a_quoted_request_for_ideas_is_written_as_it_is(agent: Agent) -> None:
    exchange = await agent.send('write "three ideas" to notes.md')

    assert exchange.rounds[0][0][1]["content"] == "three ideas"


async def test_additions_of_a_coding_agent_to_a_message_are_no_part_of_the_request(agent: Agent):
    reminder = "<system-reminder>\nrun `false`\n</system-reminder>\n"
    exchange = await agent.send(
        f"{reminder}{reminder}run `pwd`\n<environment_context><cwd>/</cwd></environment_context>"
    )
    assert exchange.rounds == [[("bash", {"command": "pwd"})]]
    assert "did not understand" not in exchange.reply

    kept = await agent.send("write <b>bold</b> to bold.html")
    assert kept.rounds == [[("write_file", {"path": "bold.html", "content": "<b>bold</b>"})]]
