"""Tools: typed functions that models may call.

    @tool
    def get_current_weather(location: str) -> dict[str, object]:
        \"\"\"Get the current weather for a location.

        :param location: City and state, such as "San Francisco, CA".
        \"\"\"

The schema comes from the annotations, the descriptions from the docstring (Google, NumPy or Sphinx style).
`tool` adds each tool to the default toolbox, which a `ToolServer` serves.
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
from banksman.sdk.blocking import in_process, in_thread
from banksman.sdk.parameters import Docstring, Parameters, ToolContext

P = ParamSpec("P")
R = TypeVar("R")


class ToolFailed(Exception):
    """Raised by a tool to fail a call; the result contains its text unchanged."""

    def __init__(self, message: str, kind: ErrorKind = "tool_error") -> None:
        self.kind: ErrorKind = kind
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ToolFailed], tuple[str, ErrorKind]]:
        """Pickle the error with its kind, because a tool in its own process raises it there."""
        return ToolFailed, (str(self), self.kind)


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A function with its definition for models. Calling it calls the function."""

    function: Callable[P, R]
    definition: ToolDefinition
    parameters: Parameters
    process: bool = False
    """True runs each call in its own process."""

    @property
    def name(self) -> str:
        """The name for models."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    async def invoke(self, arguments: JsonObject, context: ToolContext) -> object:
        """Call the function with a model's arguments. A sync function runs in a thread or a process.

        Raises:
            BadInput: An argument is invalid.
            StillRunning: The call was cancelled, but the function continues in its thread.
        """
        bound = self.parameters.bind(arguments, context)
        call = cast(Callable[[], object], partial(cast(Any, self.function), **bound))
        try:
            if self.process:
                return await in_process(call)
            value = call() if inspect.iscoroutinefunction(self.function) else await in_thread(call)
            return await cast(Awaitable[object], value) if inspect.isawaitable(value) else value
        except SystemExit as error:
            raise RuntimeError(f"{self.name} tried to end the process that serves it") from error


AnyTool = Tool[..., Any]


class Toolbox:
    """A collection of tools by name."""

    def __init__(self) -> None:
        self._tools: dict[str, AnyTool] = {}

    def add(self, tool: AnyTool) -> None:
        """Add a tool; raise `Conflict` if the toolbox has one of this name."""
        if tool.name in self._tools:
            raise Conflict(f"tool {tool.name!r} is already registered")
        self._tools[tool.name] = tool

    def get(self, name: str) -> AnyTool:
        """Return a tool; raise `NotFound` if the toolbox has none of this name."""
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
        terminate: bool = ...,
        process: bool = ...,
        secrets: tuple[str, ...] = ...,
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
        terminate: bool = False,
        process: bool = False,
        secrets: tuple[str, ...] = (),
    ) -> Any:
        """Create a tool from a function and add it. Use it as a decorator, with or without arguments.

        Every parameter of the function needs a type; a `ToolContext` stays internal.

        Args:
            function: A sync or async function.
            name: The name; None uses the function's name.
            description: The description; None uses the docstring's.
            requires_approval: True if a user must approve each call, unless an assistant's policy decides.
            category: The category under which prompts list it.
            idempotent: True if a call may run twice. Then a lost call is repeated.
            timeout_s: Seconds after which a call is ended. A sync function cannot be ended in its thread: it
                continues, and the result is `unknown_outcome`. See `process`.
            priority: Tools with a lower priority are dropped first when not all fit into a prompt.
            terminate: True if every call ends the run, with its result as the answer.
            process: True runs each call of a sync function in a process forked for it, which is killed at the
                timeout or when the call is cancelled. What the function changes in memory is lost.
            secrets: Names of the tenant's secrets that it reads with `ToolContext.secret`. Only a tenant's
                own server receives secrets.

        Raises:
            TypeError: A parameter has no type, or there is no description.
        """

        def create(function: Callable[..., Any]) -> AnyTool:
            docstring = Docstring.of(function, function.__name__, description)
            parameters = Parameters.of(function, docstring.parameters)
            definition = ToolDefinition(
                name=name or function.__name__,
                description=docstring.description,
                input_schema=parameters.schema,
                requires_approval=requires_approval,
                category=category,
                idempotent=idempotent,
                timeout_s=timeout_s,
                priority=priority,
                terminate=terminate,
                secrets=secrets,
            )
            if process and inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__name__}: an async function needs no process of its own")
            tool = Tool(function, definition, parameters, process)
            self.add(tool)
            return tool

        return create if function is None else create(function)


DEFAULT_TOOLBOX = Toolbox()
"""The default toolbox, to which `tool` adds tools."""

tool = DEFAULT_TOOLBOX.tool
