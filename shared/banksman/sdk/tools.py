"""Tools: typed functions that models may call.

    @tool
    def get_current_weather(location: str) -> dict[str, object]:
        \"\"\"Get the current weather for a location.

Args:
            location: City and state, such as "San Francisco, CA".
        \"\"\"

Its schema comes from the annotations, its texts from the docstring. A module that is loaded has its tools in
the default toolbox; a `ToolServer` serves them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.tools import ErrorKind, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.sdk.docstrings import Docstring
from banksman.sdk.parameters import Parameters, ToolContext
from banksman.sdk.threads import in_thread

P = ParamSpec("P")
R = TypeVar("R")


class ToolFailed(Exception):
    """Raised by a tool: its text is the result, as it is."""

    def __init__(self, message: str, kind: ErrorKind = "tool_error") -> None:
        self.kind: ErrorKind = kind
        super().__init__(message)


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A function, and what a model is told of it. Called like the function, it is the function."""

    function: Callable[P, R]
    definition: ToolDefinition
    parameters: Parameters

    @property
    def name(self) -> str:
        """What a model calls it."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    async def invoke(self, arguments: JsonObject, context: ToolContext) -> object:
        """Call the function with a model's arguments; one that blocks runs in a thread.

        Raises:
            BadInput: naming the parameter that does not fit.
            Exception: whatever the function raises.
        """
        bound = self.parameters.bind(arguments, context)
        call = cast(Callable[[], object], partial(cast(Any, self.function), **bound))
        try:
            value = call() if inspect.iscoroutinefunction(self.function) else await in_thread(call)
            return await cast(Awaitable[object], value) if inspect.isawaitable(value) else value
        except SystemExit as error:
            raise RuntimeError(f"{self.name} tried to end the process that serves it") from error


AnyTool = Tool[..., Any]


class Toolbox:
    """Tools by name."""

    def __init__(self) -> None:
        self._tools: dict[str, AnyTool] = {}

    def add(self, tool: AnyTool) -> None:
        """Put a tool in.

        Raises:
            Conflict: there is one of that name; it stays.
        """
        if tool.name in self._tools:
            raise Conflict(f"tool {tool.name!r} is already registered")
        self._tools[tool.name] = tool

    def get(self, name: str) -> AnyTool:
        """The tool of that name.

        Raises:
            NotFound: there is none.
        """
        if name not in self._tools:
            raise NotFound("tool", name)
        return self._tools[name]

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str | None = ...,
        description: str | None = ...,
        requires_approval: bool = ...,
        category: str = ...,
        idempotent: bool = ...,
        timeout_s: float = ...,
        priority: int = ...,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        requires_approval: bool = False,
        category: str = "general",
        idempotent: bool = False,
        timeout_s: float = 60.0,
        priority: int = 0,
    ) -> Any:
        """Make a function a tool of this box; as a decorator, with or without arguments.

        Args:
            function: Sync or async; every parameter has a type, or is a `ToolContext`.
            name: Instead of the function's.
            description: Instead of the docstring's.
            requires_approval: Whether a person must agree to each call, where no assistant's policy decides.
            category: Under which prompts list it.
            idempotent: Whether it does no harm to run it twice; then a lost call is repeated.
            timeout_s: Seconds until a call is ended. A function that blocks is left alone then, not ended.
            priority: Lower ones leave a prompt first when it must shrink.

        Raises:
            TypeError: a parameter has no type, or there is no description.
            Conflict: the box has a tool of that name.
        """

        def made(function: Callable[..., Any]) -> AnyTool:
            read = Docstring.parse(function.__doc__)
            parameters = Parameters.of(function, read.parameters)
            definition = ToolDefinition(
                name=name or function.__name__,
                description=_described(function, description or read.description),
                input_schema=parameters.schema,
                requires_approval=requires_approval,
                category=category,
                idempotent=idempotent,
                timeout_s=timeout_s,
                priority=priority,
            )
            tool = Tool(function, definition, parameters)
            self.add(tool)
            return tool

        return made if function is None else made(function)


def _described(function: Callable[..., Any], description: str) -> str:
    if not description:
        raise TypeError(f"{function.__name__}: a docstring or a description must tell models what it does")
    return description


DEFAULT_TOOLBOX = Toolbox()
"""Where `tool` puts what it makes."""

tool = DEFAULT_TOOLBOX.tool
