"""Check documents, docstrings, comments and test names for words that a reader may misunderstand.

Name the actor, and use the terms of CONTRIBUTING.md.

tools/check_words.py            list each occurrence (part of `make lint`)
tools/check_words.py --count    list the number of occurrences per folder
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_tree import files

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(?:nobody|somebody|anybody|everybody|whoever|anew|once more|bur(?:y|ies|ied)"
    r"|put(?:s|ting)? away|for ever|(?:is|are|was|were|be|been|being) told|tells?|what is (?:not )?there"
    r"|doors?|desks?|premises|pursuits?|thinkers?|holdings|storms?|befalls?|for good"
    r"|(?<!-)design\.md|interfaces\.md|rulings?|this round(?! trip)|of an aim)\b",
    re.IGNORECASE,
)
GLOSSARY = "CONTRIBUTING.md"
"""Names the terms to use."""
SKIPPED = ("/vendor/", "/golden/")

Line = tuple[int, str]


def main(arguments: list[str]) -> int:
    """Print the findings; the exit code is 1 if there is any."""
    findings = list(find(ROOT, files(ROOT)))
    if arguments == ["--count"]:
        folders = Counter(str(Path(finding.partition(":")[0]).parent) for finding in findings)
        for folder, count in sorted(folders.items()):
            print(f"{count:5} {folder}")
    else:
        for finding in findings:
            print(finding)
    return 1 if findings else 0


def find(root: Path, paths: list[Path]) -> Iterator[str]:
    """Yield findings as `file:line: word`."""
    for path in paths:
        name = path.relative_to(root).as_posix()
        if any(part in f"/{name}" for part in SKIPPED):
            continue
        for number, text in prose(path):
            for match in WORDS.finditer(text):
                line = number + text.count("\n", 0, match.start())
                yield f'{name}:{line}: "{match[0]}" is not in the glossary of {GLOSSARY}'


def prose(path: Path) -> Iterator[Line]:
    """Yield the text of a document or source file, each part with its line; nothing for other files."""
    if path.suffix == ".py":
        yield from _prose_of_python(path.read_text(encoding="utf-8"))
    elif path.suffix == ".md" or (path.suffix == ".js" and "static" in path.parts):
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)


def _prose_of_python(source: str) -> Iterator[Line]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield node.lineno, name.replace("_", " ")
            case _:
                pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
