"""The interpreter of a Python session. It runs in the sandbox, with the standard library only.

Each script arrives on standard input as `{mark}` NUL `{script}` NUL. After it, both outputs get NUL, the
mark, a space, the exit code, NUL. The value of a last expression is printed, as in an interactive session.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterator

_READ_BYTES = 64 * 1024


def _scripts(source: int) -> Iterator[tuple[bytes, bytes]]:
    received = bytearray()
    while chunk := os.read(source, _READ_BYTES):
        received += chunk
        while received.count(0) > 1:
            mark, script, rest = bytes(received).split(b"\0", 2)
            yield mark, script
            received[:] = rest


def _run(script: bytes, names: dict[str, object]) -> int:
    try:
        tree = ast.parse(script, "<session>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<session>", "exec"), names)  # noqa: S102 - running scripts is its purpose
        if isinstance(last, ast.Expr):
            value = ast.Interactive([last])
            exec(compile(value, "<session>", "single"), names)  # noqa: S102 - as above
    except Exception as error:
        # Without the frame of this function.
        frames = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    return 0


def main() -> None:
    source, outputs = os.dup(0), (os.dup(1), os.dup(2))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # `pickle` and others look up names in the main module.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    for mark, script in _scripts(source):
        code = _run(script, vars(module))
        sys.stdout.flush()
        sys.stderr.flush()
        for fd in outputs:
            os.write(fd, b"\0%b %d\0" % (mark, code))


if __name__ == "__main__":
    main()
