"""The conversations of `make try-model`: the user's messages, the tools' results, and the checks.

Results are scripted, so no command runs and no file is written, whatever a model under test calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from banksman.contracts.wire import JsonObject

FILES = {
    "notes.txt": "banana\nsecond line\n",
    "first.txt": "The answer is in second.txt\n",
    "second.txt": "heron\n",
}
POEM = 'She said "hi".\nC:\\temp'


@dataclass(frozen=True)
class Made:
    """A call that the model made."""

    name: str
    arguments: JsonObject
    terminate: bool


@dataclass
class Transcript:
    """What happened in one conversation."""

    calls: list[Made] = field(default_factory=list[Made])
    malformed: list[str] = field(default_factory=list[str])
    """The violated rules, in order."""
    failed: list[str] = field(default_factory=list[str])
    """Calls of unknown tools and invalid arguments."""
    answer: str = ""
    ended: str = ""
    """`answer`, `terminate`, or the reason why the conversation was aborted."""

    def called(self, name: str, **arguments: object) -> bool:
        """Return whether a tool was called with these arguments among others."""
        return any(
            call.name == name and all(call.arguments.get(key) == value for key, value in arguments.items())
            for call in self.calls
        )


Check = Callable[[Transcript], bool]


@dataclass(frozen=True)
class Conversation:
    """One message of a user, and the checks of the transcript by name."""

    name: str
    message: str
    checks: Mapping[str, Check]


def result(name: str, arguments: JsonObject) -> JsonObject:
    """Return the scripted result of a call."""
    match name, arguments.get("path"):
        case "read_file", str(path) if path.removeprefix("/workspace/").removeprefix("./") in FILES:
            content = FILES[path.removeprefix("/workspace/").removeprefix("./")]
            return {"success": True, "content": content, "truncated": False, "total_bytes": len(content)}
        case "read_file", path:
            return {"success": False, "error": f"{path}: the file does not exist", "error_kind": "tool_error"}
        case "write_file", path:
            return {"success": True, "path": path, "created": True}
        case "bash", _:
            done = {"success": True, "exit_code": 0, "stdout": "lifted\n", "stderr": "", "truncated": False}
            return dict(done)
        case _:
            return {"success": True}


CONVERSATIONS = (
    Conversation(
        "answers without a tool",
        "What is 6 times 7? You know it, so use no tool. Reply with the number only.",
        {
            "makes no call": lambda t: not t.calls,
            "answers": lambda t: t.ended == "answer" and "42" in t.answer,
        },
    ),
    Conversation(
        "reads a file",
        "Read notes.txt in the workspace with a tool, and tell me its first word.",
        {
            "calls read_file": lambda t: t.called("read_file"),
            "answers from the result": lambda t: t.ended == "answer" and "banana" in t.answer,
        },
    ),
    Conversation(
        "follows a result",
        "Read first.txt with a tool and follow what it says. Which word do you find?",
        {
            "makes a second call": lambda t: sum(call.name == "read_file" for call in t.calls) >= 2,
            "answers from the second result": lambda t: t.ended == "answer" and "heron" in t.answer,
        },
    ),
    Conversation(
        "reports an error",
        "Read absent.txt with a tool and tell me what it says. Do not create it.",
        {
            "tries": lambda t: t.called("read_file"),
            "changes nothing": lambda t: not t.called("write_file"),
            "answers": lambda t: t.ended == "answer" and bool(t.answer.strip()),
        },
    ),
    Conversation(
        "ends with a result",
        "Run `echo lifted` with bash as your last action: its output itself is the answer, so set terminate.",
        {
            "calls bash": lambda t: t.called("bash"),
            "sets terminate": lambda t: t.ended == "terminate",
        },
    ),
    Conversation(
        "continues after a result",
        "Run `echo lifted` with bash. When you have its output, translate it into Latin for me.",
        {
            "does not set terminate": lambda t: not any(call.terminate for call in t.calls),
            "answers": lambda t: t.called("bash") and t.ended == "answer" and bool(t.answer.strip()),
        },
    ),
    Conversation(
        "escapes quotes, line breaks and backslashes",
        f"Write a file poem.txt with a tool. It has exactly these two lines:\n{POEM}",
        {
            "calls write_file": lambda t: t.called("write_file"),
            "writes the text exactly": lambda t: any(
                str(call.arguments.get("content")).rstrip("\n") == POEM for call in t.calls
            ),
        },
    ),
    Conversation(
        "writes numbers as numbers",
        "Run `echo lifted` with bash and a time-out of 5 seconds, then say done.",
        {"passes the number": lambda t: t.called("bash", timeout_s=5)},
    ),
    Conversation(
        "invents no tool",
        "Send an e-mail to ada@example.org that says hello. If no tool can do that, say so.",
        {
            "calls no unknown tool": lambda t: (
                not any(call.name.startswith(("send", "email")) for call in t.calls)
            ),
            "answers": lambda t: t.ended == "answer" and bool(t.answer.strip()),
        },
    ),
    Conversation(
        "answers in JSON",
        'Reply with this JSON object and nothing else: {"colour": "blue", "count": 3}',
        {"answers": lambda t: t.ended == "answer" and '"colour"' in t.answer and not t.calls},
    ),
)
