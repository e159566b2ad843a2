"""Prepares the store of nats-server and starts the server, so that the server reads its message files.

The preparation runs without site packages, so that it costs a few milliseconds at each start, and then
becomes the server.

An orderly stop writes an index of each stream (`msgs/index.db`). A server that finds it compares only the
last checksum and reads no message. It then appends to files that a later rebuild, as after `kill -9`, cuts
off at the first message with a wrong checksum: messages appended after it would be lost. Without
the index the server reads and cuts its files before it accepts a message. The preparation first removes the
damaged messages from the files, so that the server cuts off no intact ones.

A server does not become ready with damaged settings of a stream or a consumer (`meta.inf`, or its checksum
`meta.sum`). Those of the last start, of which the preparation keeps copies, replace them.

A damaged state file of a consumer (`o.dat`) prevents the consumer from starting or from being created.
Without the file the server starts the consumer from the messages of its stream. That is safe for all
consumers of the product: a work queue contains exactly the unfinished messages, and every handler is safe to
run twice.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from banksman.cli.broker.store import main
main()
"""
SETTINGS = "settings"
"""Directory in `store_dir` for copies of the settings of streams and consumers."""
_STATE_MAGIC = 22
_STATE_VERSIONS = (1, 2)
_ROOT = Path(__file__).parents[3]


def started(command: tuple[str, ...], store: Path) -> tuple[str, ...]:
    """Return the command line that prepares `store`, the server's `store_dir`, and becomes `command`."""
    return (sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(store), *command)


def prepare(store: Path) -> list[str]:
    """Remove indexes, damaged messages and damaged state files of consumers, and replace damaged settings.

    Returns:
        One sentence for each file with damaged messages, and for each stream and consumer that is repaired.
    """
    remove_indexes(store)
    rebuilt = rebuild_states(store)
    if not any(file.stat().st_size for file in store.glob("jetstream/*/streams/*/msgs/*.blk")):
        return rebuilt
    # The import takes longer than the rest, and a first start does not need it.
    from banksman.cli.broker.salvage import salvage

    return [*replace_settings(store), *map(str, salvage(store)), *rebuilt]


def remove_indexes(store: Path) -> None:
    """Let the server read all files at its next start."""
    for index in store.glob("jetstream/*/streams/*/msgs/index.db"):
        index.unlink(missing_ok=True)


def rebuild_states(store: Path) -> list[str]:
    """Remove damaged state files of consumers; return one sentence for each."""
    damaged = damaged_states(store)
    for state in damaged.values():
        state.unlink()
    return [f"consumer {name}: its damaged state is rebuilt from the stream" for name in damaged]


def replace_settings(store: Path) -> list[str]:
    """Copy intact settings of streams and consumers, and replace damaged ones; return a sentence for each.

    Without a copy, as after the first start, settings of a stream that are still JSON get a new checksum, and
    a consumer is removed: `banksman streams provision` creates it again.
    """
    from banksman.cli.broker.salvage import settings_checksum

    found: list[str] = []
    for name, file in _settings(store):
        content, copy = file.read_bytes(), store / SETTINGS / file.relative_to(store / "jetstream")
        checksum = settings_checksum(store, name, content)
        if checksum is None:
            return []
        if _text(file.with_suffix(".sum")) == checksum:
            _write(copy, content)
            continue
        kept = _content(copy)
        if not _is_json(kept) and "/" in name:
            shutil.rmtree(file.parent)
            found.append(f"{name}: its settings were damaged, and it is created again")
        elif content := next(filter(_is_json, (kept, content)), b""):
            _write(file, content)
            _write(file.with_suffix(".sum"), str(settings_checksum(store, name, content)).encode())
            found.append(f"{name}: its settings were damaged and are replaced")
        else:
            found.append(f"{name}: its settings are damaged: restore a backup")
    return [*found, *_missing(store)]


def _missing(store: Path) -> Iterator[str]:
    """Yield a sentence for each stream with a copy of its settings and without a directory."""
    for copy in sorted((store / SETTINGS).glob("*/streams/*/meta.inf")):
        stream = copy.parent.relative_to(store / SETTINGS)
        # Those of an interrupted restore are deleted by the next one.
        if not (store / "jetstream" / stream).exists() and not stream.name.startswith("RESTORE"):
            shutil.rmtree(copy.parent)
            yield f"stream {stream.name} is missing, with all its messages: restore a backup"


def _settings(store: Path) -> Iterator[tuple[str, Path]]:
    """Yield the file with the settings of each stream and each consumer, with its name."""
    for file in sorted(store.glob("jetstream/*/streams/*/meta.inf")):
        yield file.parent.name, file
        for consumer in sorted(file.parent.glob("obs/*/meta.inf")):
            yield f"{file.parent.name}/{consumer.parent.name}", consumer


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _text(file: Path) -> str:
    return _content(file).decode(errors="replace")


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _write(file: Path, content: bytes) -> None:
    if _content(file) != content:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.replace(file)


def damaged_states(store: Path) -> dict[str, Path]:
    """Return the state files of consumers that the server could not read, by `{stream}/{consumer}`.

    The files have no checksum: altered numbers that are still possible are not found.
    """
    return {
        f"{state.parents[2].name}/{state.parent.name}": state
        for state in sorted(store.glob("jetstream/*/streams/*/obs/*/o.dat"))
        if not is_consumer_state(state.read_bytes())
    }


def is_consumer_state(content: bytes) -> bool:
    """Return whether the content of a state file can be decoded and its numbers agree with each other.

    Layout: magic, version, then varints: the acknowledged and the delivered consumer and stream sequences,
    the number of pending messages, the base of their times and three numbers of each, the number of
    redelivered messages and two numbers of each. The server treats an empty file as a new consumer.
    """
    if not content:
        return True
    if len(content) < 2 or content[0] != _STATE_MAGIC or content[1] not in _STATE_VERSIONS:
        return False
    numbers = _varints(content[2:])
    if numbers is None or len(numbers) < 6:
        return False
    acked, acked_seq, delivered, delivered_seq, pending = numbers[:5]
    if acked > delivered or acked_seq > delivered_seq:
        return False
    redelivered_at = 5 + (1 + 3 * pending if pending else 0)
    return len(numbers) > redelivered_at and len(numbers) == redelivered_at + 1 + 2 * numbers[redelivered_at]


def _varints(content: bytes) -> list[int] | None:
    """Return the numbers of 7 bits per byte, lowest first; None if the last one is incomplete."""
    numbers: list[int] = []
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers if shift == 0 else None


def main() -> None:
    store, command = Path(sys.argv[1]), sys.argv[2:]
    for sentence in prepare(store):
        # The form of the services' logs, whose warnings `banksman up` prints.
        sys.stderr.write(json.dumps({"level": "warning", "event": sentence}) + "\n")
    sys.stderr.flush()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
