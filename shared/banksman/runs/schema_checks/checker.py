"""Check tool arguments against the tool's JSON Schema, and check such schemas.

Schemas of this project are applied in the process. Schemas of tool servers are applied in separate processes
with limits, because tenants choose them, unless `certainly_fits` confirms that the arguments fit.

Most tools have a schema with types, properties and bounds only, and most calls fit it. `certainly_fits` takes
a limited number of steps, so that no schema and no value of a tenant takes longer than a millisecond.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.ids import digest
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runtime.limited_processes import LimitedProcesses, LimitExceeded, ProcessLimits
from banksman.runtime.scope import Scoped

if TYPE_CHECKING:
    from banksman.runs.schema_checks.process import CheckReply, CheckRequest

MAX_REMEMBERED = 1_000
"""Maximum number of schemas remembered as too expensive, and of schemas remembered as valid."""


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """The first argument that does not fit the schema."""

    parameter: str
    """Dotted path of the argument; `arguments` for the object as a whole."""
    value: JsonValue
    expected: str

    def __str__(self) -> str:
        return str(BadInput(self.parameter, self.value, self.expected))


@dataclass(frozen=True, slots=True)
class SchemaLimits(ProcessLimits):
    refused_s: float = 60.0
    """Seconds for which calls of a tenant are refused at once after their schema exceeded a limit."""


def argument_problem(schema: JsonObject, arguments: JsonObject) -> ArgumentProblem | None:
    """Return why arguments do not fit a schema of this project; None if they fit."""
    if certainly_fits(schema, arguments):
        return None
    # Imported on first use: the library takes long to load, and many processes check no arguments.
    from banksman.runs.schema_checks.process import reply_to

    return _problem(reply_to({"schema": json.dumps(schema), "value": arguments}), arguments)


def check_schema(schema: JsonObject) -> None:
    """Raise `BadInput` if a schema of this project is invalid, exceeds a limit or refers outside itself."""
    from banksman.runs.schema_checks.process import reply_to

    _raise_fault(reply_to({"schema": json.dumps(schema)}), schema)


class SchemaChecker(Scoped):
    """Applies the schemas of tool servers. The end of its context ends its processes."""

    def __init__(self, limits: SchemaLimits | None = None) -> None:
        self._limits = limits or SchemaLimits()
        self._processes = LimitedProcesses("banksman.runs.schema_checks.process", self._limits)
        self._expensive: dict[str, float] = {}
        """The times until which calls are refused, by tenant and schema."""
        self._valid: dict[str, None] = {}
        """Digests of valid schemas: tool servers register the same schemas every few seconds."""

    async def argument_problem(
        self, tenant: str, tool: ToolDefinition, arguments: JsonObject
    ) -> ArgumentProblem | None:
        """Return why arguments do not fit the schema of a tool; None if they fit.

        No arguments fit a schema that cannot be applied within the limits: an error would lose a paid model
        reply.
        """
        if any(tool is one for one in WORKSPACE_TOOLS):
            return argument_problem(tool.input_schema, arguments)
        return await self.object_problem(tenant, tool.input_schema, arguments)

    async def object_problem(
        self, tenant: str, schema: JsonObject, value: JsonObject
    ) -> ArgumentProblem | None:
        """Return why an object does not fit a schema of a tenant, as `argument_problem`."""
        if certainly_fits(schema, value):
            return None
        request: CheckRequest = {"schema": json.dumps(schema), "value": value}
        try:
            return _problem(await self._checked(tenant, request), value)
        except Unavailable as error:
            return ArgumentProblem("arguments", None, str(error))

    async def check_schema(self, tenant: str, schema: JsonObject, field: str = "input_schema") -> None:
        """Raise `BadInput` as `check_schema`, for the schema of a tenant in a field of a request."""
        text = json.dumps(schema)
        if (known_as := digest(text.encode())) in self._valid:
            return
        reply = await self._checked(tenant, {"schema": text})
        if "unusable" in reply:
            raise BadInput(field, None, f"a schema that can be applied; {reply['unusable']}")
        _raise_fault(reply, schema, field)
        self._valid[known_as] = None
        _forget_first(self._valid)

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._processes)

    async def _checked(self, tenant: str, request: CheckRequest) -> CheckReply:
        known_as = f"{tenant}.{digest(request['schema'].encode())}"
        async with self._processes.turn(tenant):
            now = asyncio.get_running_loop().time()
            if self._expensive.get(known_as, 0.0) > now:
                return {"unusable": "it needs too much time or memory"}
            try:
                return json.loads(await self._processes.exchange(json.dumps(request).encode()))
            except LimitExceeded as limit:
                self._remember(known_as, now)
                return {"unusable": f"it needs too much time or memory ({limit})"}

    def _remember(self, known_as: str, now: float) -> None:
        self._expensive.pop(known_as, None)
        self._expensive[known_as] = now + self._limits.refused_s
        _forget_first(self._expensive)


def _forget_first(remembered: dict[str, Any]) -> None:
    if len(remembered) > MAX_REMEMBERED:
        del remembered[next(iter(remembered))]


def _problem(reply: CheckReply, arguments: JsonObject) -> ArgumentProblem | None:
    if "unusable" in reply:
        return ArgumentProblem("arguments", None, f"the schema cannot be applied: {reply['unusable']}")
    if "expected" not in reply:
        return None
    path = reply.get("path", [])
    parameter = ".".join(str(part) for part in path) or "arguments"
    return ArgumentProblem(parameter, _at(arguments, path), reply["expected"])


def _raise_fault(reply: CheckReply, schema: JsonObject, field: str = "input_schema") -> None:
    if "expected" in reply:
        path = reply.get("path", [])
        at = ".".join([field, *(str(part) for part in path)])
        raise BadInput(at, _at(schema, path), reply["expected"])


def _at(value: JsonValue, path: list[str | int]) -> JsonValue:
    """Return the part of a value at a path; None if it is missing, a schema, or the whole object."""
    for part in path:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value if path else None


MAX_STEPS = 5_000
"""Maximum number of values, names and alternatives that one check examines."""

_ANNOTATIONS = frozenset({"$comment", "$schema", "default", "deprecated", "description", "examples", "title"})
_TYPES: dict[str, Callable[[JsonValue], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    # 1.0 is an integer as well: it is left to the library.
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
_NUMBERS = (int, float)
_BOUNDS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "exclusiveMaximum": (_NUMBERS, operator.pos, operator.lt),
    "exclusiveMinimum": (_NUMBERS, operator.pos, operator.gt),
    "maxItems": ((list,), len, operator.le),
    "maxLength": ((str,), len, operator.le),
    "maximum": (_NUMBERS, operator.pos, operator.le),
    "minItems": ((list,), len, operator.ge),
    "minLength": ((str,), len, operator.ge),
    "minimum": (_NUMBERS, operator.pos, operator.ge),
}
"""By keyword: the types that it applies to, the measured property, and the comparison with the bound."""


def certainly_fits(schema: JsonObject, value: JsonValue) -> bool:
    """Return True if a value fits a schema; False if it does not fit, or only the full check can decide."""
    try:
        return _Check().fits(schema, value)
    except RecursionError:
        return False


class _Check:
    def __init__(self) -> None:
        self._steps = MAX_STEPS

    def fits(self, schema: JsonValue, value: JsonValue) -> bool:
        if not isinstance(schema, dict) or not self._may_take(1):
            return False
        return all(self._holds(word, schema, value) for word in schema if word not in _ANNOTATIONS)

    def _holds(self, word: str, schema: JsonObject, value: JsonValue) -> bool:
        rule = schema[word]
        match word, rule:
            case "type", str():
                return rule in _TYPES and _TYPES[rule](value)
            case "type", list():
                return self._may_take(len(rule)) and any(
                    isinstance(name, str) and name in _TYPES and _TYPES[name](value) for name in rule
                )
            case "anyOf", list():
                return any(self.fits(alternative, value) for alternative in rule)
            case "enum", list():
                # Compares only strings, because 1, 1.0 and True are equal in Python.
                return self._may_take(len(rule)) and isinstance(value, str) and value in rule
            case "required", list():
                return self._may_take(len(rule)) and isinstance(value, dict) and all(n in value for n in rule)
            case "properties", dict():
                return isinstance(value, dict) and all(
                    self.fits(rule[name], part) for name, part in value.items() if name in rule
                )
            case "additionalProperties", bool():
                known = schema.get("properties")
                names = known if isinstance(known, dict) else {}
                return rule or (isinstance(value, dict) and all(self._is_in(names, name) for name in value))
            case "items", dict():
                return isinstance(value, list) and all(self.fits(rule, part) for part in value)
            case _, int() | float() if word in _BOUNDS and not isinstance(rule, bool):
                types, measure, compare = _BOUNDS[word]
                return (
                    isinstance(value, types) and not isinstance(value, bool) and compare(measure(value), rule)
                )
            case _:
                return False

    def _is_in(self, names: JsonObject, name: str) -> bool:
        return self._may_take(1) and name in names

    def _may_take(self, steps: int) -> bool:
        self._steps -= steps
        return self._steps >= 0
