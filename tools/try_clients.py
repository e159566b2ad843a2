"""Run common clients against a gateway with the demo model, and print the result of each.

tools/try_clients.py [NAME…] [--dir DIRECTORY] [--latest]

OpenAI's SDKs parse the cases of the normaliser's table. The programs of `client_programs.py` complete a
conversation, and those with tools call one of their own or a tool of `/mcp`. They are installed below the
directory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
from tools.client_programs import PROGRAMS, PROOF, Program

from banksman.cli.machine import free_port

ROOT = Path(__file__).resolve().parents[1]
BANKSMAN = ROOT / ".venv/bin/banksman"
NORMALISER = "tests/gateway/passthrough/test_normaliser.py"
SDKS = (("openai (Python)", "openai", "not javascript"), ("openai (JavaScript)", "", "javascript"))
INSTALL_S = 900
START_S = 120
RUN_S = 180
DEMO = "demo model"
"""A text in every reply of the demo model to a greeting."""
OUTCOMES = {
    "file": "calls its tool and replies",
    "run": "starts a run of the agent over `/mcp` and replies",
    "none": "replies",
}
"""The description of a program's result by its effect."""


@dataclass(frozen=True)
class Result:
    """The result of one client."""

    client: str
    version: str
    outcome: str
    ok: bool


def main(arguments: Sequence[str]) -> int:
    """Print a line per client; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="clients (default: all)")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "banksman-clients")
    parser.add_argument("--latest", action="store_true", help="the latest versions, not the tested ones")
    given = parser.parse_args(arguments)
    given.dir.mkdir(parents=True, exist_ok=True)
    wanted = {name.lower() for name in given.names}
    programs = [one for one in PROGRAMS if not wanted or one.name.lower() in wanted]
    results = [] if wanted else [_sdk(*row) for row in SDKS]
    with _gateway(given.dir) as url:
        results += [_tried(program, given.dir, url, latest=given.latest) for program in programs]
    return 0 if all(result.ok for result in results) else 1


def _tried(program: Program, directory: Path, url: str, *, latest: bool) -> Result:
    try:
        folder, installed = _install(program, directory, latest=latest)
        outcome, ok = _run(program, folder, directory, url)
    except (subprocess.SubprocessError, OSError) as error:
        installed, outcome, ok = program.version, f"failed: {error}"[:300], False
    return _printed(Result(program.name, installed, outcome, ok))


def _printed(result: Result) -> Result:
    print(f"| {result.client} | {result.version} | {result.outcome} |", flush=True)
    return result


def _sdk(name: str, package: str, selection: str) -> Result:
    """Parse every deviation of the normaliser's table with a vendor's SDK."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", NORMALISER, "-k", selection]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    ok = done.returncode == 0
    outcome = "reads every deviation" if ok else f"failed: {done.stdout[-300:]}"
    return _printed(Result(name, version(package) if package else _pinned_openai(), outcome, ok))


def _pinned_openai() -> str:
    pins = (ROOT / "tests/gateway/passthrough/node/package.json").read_text(encoding="utf-8")
    return pins.partition('"openai": "')[2].partition('"')[0]


def _install(program: Program, directory: Path, *, latest: bool) -> tuple[Path, str]:
    """Install a program; return the folder of its executable, and its version."""
    folder = directory / f"{program.registry}-{program.package.rpartition('/')[2]}"
    wanted = "latest" if latest else program.version
    if program.registry == "npm":
        spec = f"{program.package}@{wanted}"
        _quiet("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), spec)
        shown = _quiet("npm", "ls", "--prefix", str(folder), program.package, "--parseable", "--long")
        return folder / "node_modules/.bin", shown.strip().rpartition("@")[2].partition(":")[0]
    if not (folder / "bin/python").exists():
        _quiet(sys.executable, "-m", "venv", str(folder))
    pip = (str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check")
    spec = program.package if latest else f"{program.package}=={wanted}"
    _quiet(*pip, "install", "--quiet", "--upgrade", spec)
    shown = _quiet(*pip, "show", program.package)
    return folder / "bin", shown.partition("Version: ")[2].partition("\n")[0]


def _quiet(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{command[0]}: {(done.stderr or done.stdout)[-200:]}")
    return done.stdout


def _run(program: Program, folder: Path, directory: Path, url: str) -> tuple[str, bool]:
    """Run a program's conversation in a new home directory."""
    # A JavaScript module finds packages only in the folders above its own.
    above = folder.parents[1] if program.command[0] == "node" else directory
    with tempfile.TemporaryDirectory(dir=above, ignore_cleanup_errors=True) as home:
        for name, text in program.files.items():
            (Path(home) / name).write_text(program.adapted(text, url), encoding="utf-8")
        environment = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "dumb", "NO_COLOR": "1", "CI": "1"}
        environment |= {name: program.adapted(text, url) for name, text in program.environment.items()}
        if program.before:
            _command(program, folder, program.before, home, environment, url)
        conversations = _conversations(url)
        begun = time.monotonic()
        output = _command(program, folder, program.command[1:], home, environment, url)
        taken = f"{time.monotonic() - begun:.0f} s"
        acted = {
            "file": (Path(home) / PROOF).exists(),
            "run": _conversations(url) > conversations,
            "none": True,
        }
    if DEMO not in output or not acted[program.effect]:
        return f"failed: {' '.join(output.split())[-300:]}", False
    return f"{OUTCOMES[program.effect]}, {taken}", True


def _conversations(url: str) -> int:
    """Return the number of the agent's conversations."""
    return len(httpx.get(f"{url}/context/conversations", trust_env=False).json()["items"])


def _command(
    program: Program,
    folder: Path,
    arguments: tuple[str, ...],
    home: str,
    environment: dict[str, str],
    url: str,
) -> str:
    """Run a program and return its output."""
    paths = f"{folder}{os.pathsep}{environment['PATH']}"
    executable = shutil.which(program.command[0], path=paths) or program.command[0]
    done = subprocess.run(
        [executable, *(program.adapted(text, url) for text in arguments)],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    return done.stdout


@contextmanager
def _gateway(directory: Path) -> Generator[str]:
    """Run a separate system with the demo model."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as data:
        clean = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        environment = {**clean, "BANKSMAN_DATA_DIR": data}
        command = [str(BANKSMAN), "up", "--port", url.rpartition(":")[2]]
        system = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        try:
            _wait_ready(url, system)
            yield url
        finally:
            system.terminate()
            system.wait(timeout=START_S)


def _wait_ready(url: str, system: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while system.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise RuntimeError("the system did not start")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
