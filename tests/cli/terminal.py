"""A command on a terminal of its own."""

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from tests.support.polling import wait_until
from tests.support.timeouts import WAIT_TIMEOUT_S

from .conftest import environment


class Terminal:
    """A terminal of a command: the printed text, and the keys that a test presses."""

    def __init__(self, process: "subprocess.Popen[bytes]", keyboard: int) -> None:
        self.text = ""
        self._process = process
        self._keyboard = keyboard
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def press(self, keys: str) -> None:
        """Press keys; `\\n` is Enter."""
        os.write(self._keyboard, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed a text."""
        wait_until(lambda: text in self.text, failure=lambda: f"{text!r} is not in {self.text!r}")

    def ended(self) -> int:
        """Wait for the end of the command and return its exit code."""
        code = self._process.wait(WAIT_TIMEOUT_S)
        self._reader.join(WAIT_TIMEOUT_S)
        return code

    def close(self) -> None:
        """Kill the command if it is still running."""
        self._process.kill()
        self.ended()
        os.close(self._keyboard)

    def _read(self) -> None:
        # The kernel reports EIO when the last process has closed the terminal.
        with suppress(OSError):
            while piece := os.read(self._keyboard, 65536):
                self.text += piece.decode()


@contextmanager
def on_terminal(*arguments: str, variables: Mapping[str, str]) -> Generator[Terminal]:
    """Run `banksman` on a terminal."""
    keyboard, device = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "banksman.cli", *arguments],
        stdin=device,
        stdout=device,
        stderr=device,
        env=environment(**variables),
        start_new_session=True,
    )
    os.close(device)
    terminal = Terminal(process, keyboard)
    try:
        yield terminal
    finally:
        terminal.close()
