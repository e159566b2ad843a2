"""The bash tool in the tool box, with real sandboxes."""

from __future__ import annotations

import asyncio
import platform
import resource
import textwrap
from pathlib import Path

import pyseccomp
import pytest
from tests.tool_runner.conftest import Runner, exists, only

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.settings import RunnerLimits, SandboxLimits


def python(code: str) -> str:
    """Build a command that runs Python in the sandbox."""
    return "/usr/bin/python3 - <<'PYTHON'\n" + textwrap.dedent(code) + "\nPYTHON"


def result(value: JsonObject) -> tuple[object, object, object]:
    return value["stdout"], value["stderr"], value["exit_code"]


async def test_stdout_stderr_and_exit_code_are_returned(runner: Runner) -> None:
    """R64."""
    outcome = await runner.bash("echo hi; echo err >&2; exit 3")
    assert result(outcome.value) == ("hi\n", "err\n", 3)
    assert outcome.value["success"] is False
    assert (outcome.is_error, outcome.exit_code, outcome.output) == (False, 3, None)


async def test_commands_run_in_the_workspace_and_their_files_remain(runner: Runner) -> None:
    """R65."""
    outcome = await runner.bash("pwd; touch f; ls")
    assert outcome.value["stdout"] == "/workspace\nf\n"
    assert (runner.workspace.directory / "f").exists()


async def test_a_skill_runs_as_a_script_of_the_workspace(runner: Runner) -> None:
    """R66."""
    await runner.call("write_file", path=".claude/skills/count.py", content="print(sum(range(10)))")
    outcome = await runner.bash("python3 .claude/skills/count.py")
    assert outcome.value["stdout"] == "45\n"


async def test_everything_but_the_workspace_and_scratch_space_is_read_only(runner: Runner) -> None:
    paths = ["/x", "/usr/x", "/etc/x", "/dev/x", "/lib/x", "/srv/x", "/var/x", "/run/x"]
    outcome = await runner.bash(f"for path in {' '.join(paths)}; do touch $path || echo $path; done")
    assert str(outcome.value["stdout"]).split() == paths
    assert (await runner.bash("echo x > /proc/sys/kernel/hostname")).value["exit_code"] != 0
    assert not any(exists(path) for path in paths)


@only("bwrap", "a container has these from its image")
@pytest.mark.parametrize("path", ["/root", "/var/run/docker.sock", "/etc/shadow", "/home/*", "/sys", "/boot"])
async def test_host_directories_do_not_exist_in_the_sandbox(runner: Runner, path: str) -> None:
    outcome = await runner.bash(f"ls -d {path}")
    assert outcome.value["exit_code"] != 0
    assert "No such file" in str(outcome.value["stderr"])


async def test_host_files_do_not_exist_in_the_sandbox(runner: Runner, root: Path) -> None:
    canary = root / "canary"
    canary.write_text("of the host")
    canary.chmod(0o644)
    places = [canary, Path("/var/run/docker.sock"), Path("/run/banksman-test-engine"), Path(__file__)]
    outcome = await runner.bash(f"ls -d {' '.join(map(str, places))}; grep -rs 'of the host' /var/tmp /home")
    assert outcome.value["stdout"] == ""
    assert str(outcome.value["stderr"]).count("No such file") == len(places)


async def test_other_workspaces_do_not_exist_in_the_sandbox(runner: Runner) -> None:
    neighbour = runner.store.get("acme", "c2")
    (neighbour.directory / "secret").write_text("neighbour's")
    outcome = await runner.bash(
        f"ls {neighbour.directory} {runner.store.root}; ls -a /workspace/.. | tr '\\n' ' '"
    )
    assert str(outcome.value["stderr"]).count("No such file") == 2
    assert "secret" not in str(outcome.value["stdout"])


async def test_environment_has_only_the_documented_variables(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    outcome = await runner.bash(
        "env | cut -d= -f1 | sort | tr '\\n' ' '; cat /proc/*/environ | grep -ac canary"
    )
    known = "HOME LANG LOGNAME NPM_CONFIG_PREFIX PATH PIP_BREAK_SYSTEM_PACKAGES"
    assert outcome.value["stdout"] == f"{known} PWD SHELL SHLVL TERM TMPDIR USER _ 0\n"


async def test_the_network_is_unreachable(runner: Runner) -> None:
    addresses = ["1.1.1.1/53", "169.254.169.254/80", "127.0.0.1/4222", "10.0.0.1/80", "172.17.0.1/80"]
    outcome = await runner.bash(
        f"for address in {' '.join(addresses)}; do timeout 2 bash -c "
        '"echo > /dev/tcp/$address" 2>/dev/null; echo $address $?; done'
    )
    assert str(outcome.value["stdout"]).splitlines() == [f"{address} 1" for address in addresses]


async def test_time_out_ends_the_command_and_returns_output_and_limit(runner: Runner) -> None:
    """R55."""
    outcome = await runner.bash("echo early; sleep 60", timeout_s=0.5)
    assert outcome.value["timed_out"] is True
    assert (outcome.value["stdout"], outcome.value["exit_code"]) == ("early\n", None)
    assert "0.5 s" in str(outcome.value["error"])
    assert outcome.error_kind == "timeout"


async def test_time_out_of_the_caller_limits_the_time_out_of_the_model(runner: Runner) -> None:
    arguments: JsonObject = {"command": "sleep 60", "timeout_s": 50}
    outcome = await runner.box.run("bash", runner.workspace, arguments, timeout_s=0.3)
    assert "0.3 s" in str(outcome.value["error"])


async def test_a_fork_bomb_ends_and_the_next_call_works(runner: Runner) -> None:
    await runner.bash(":(){ :|:& };: ; sleep 0.3", timeout_s=2)
    assert (await runner.bash("echo alive")).value["stdout"] == "alive\n"


async def test_process_limit_counts_each_call_separately(runner: Runner) -> None:
    crowd = "for i in $(seq 50); do sleep 2 & done; jobs | wc -l; kill $(jobs -p)"
    arguments: JsonObject = {"command": crowd}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(runner.box.run("bash", runner.store.get("acme", f"n{number}"), arguments))
            for number in range(3)
        ]
    assert [task.result().value["stdout"] for task in tasks] == ["50\n"] * 3


@pytest.mark.parametrize(
    "limits", [RunnerLimits(sandbox=SandboxLimits(max_output_bytes=64 * 1024 * 1024))], ids=["64 MiB"]
)
async def test_flood_of_output_is_cut_and_killed_within_bounded_memory(
    runner: Runner, limits: RunnerLimits
) -> None:
    before = resident_bytes()
    outcome = await runner.bash("yes", timeout_s=50)
    assert outcome.error_kind == "output_limit"
    assert outcome.value["killed_reason"] == "output_limit"
    assert outcome.value["truncated"] is True
    assert len(str(outcome.value["stdout"])) <= 10_000
    assert int(str(outcome.value["total_bytes"])) > limits.sandbox.max_output_bytes
    assert resident_bytes() - before < 20 * 1024 * 1024


async def test_long_output_is_cut_in_the_middle_and_stored(runner: Runner) -> None:
    """R64, R41 Q2."""
    outcome = await runner.bash("seq 20000; echo oops >&2")
    stdout, whole = str(outcome.value["stdout"]), outcome.output
    assert whole is not None
    assert stdout.startswith("1\n2\n")
    assert stdout.endswith("19999\n20000\n")
    assert outcome.value["stderr"] == "oops\n"
    assert len(stdout) + len("oops\n") == 10_000
    assert set(whole.decode().split()) == {*map(str, range(1, 20001)), "oops"}


async def test_the_model_can_page_through_a_cut_output(runner: Runner) -> None:
    """R41 Q2."""
    outcome = await runner.bash("seq 5000")
    path, pages, offset = str(outcome.value["full_output_path"]), "", 0
    while offset is not None:
        part = (await runner.call("read_file", path=path, byte_offset=offset)).value
        pages += str(part["content"])
        offset = part.get("next_byte_offset")
    assert pages.split() == [str(number) for number in range(1, 5001)]


async def test_both_streams_share_one_limit(runner: Runner) -> None:
    outcome = await runner.bash("yes out | head -c 50000; yes err | head -c 50000 >&2")
    stdout, stderr = str(outcome.value["stdout"]), str(outcome.value["stderr"])
    assert len(stdout) + len(stderr) <= 10_000
    assert min(len(stdout), len(stderr)) >= 4_900


async def test_binary_output_becomes_valid_text(runner: Runner) -> None:
    outcome = await runner.bash("head -c 300 /dev/urandom")
    assert str(outcome.value["stdout"]).encode("utf-8")


async def test_standard_input_is_empty(runner: Runner) -> None:
    outcome = await runner.bash("read x; echo $?; cat | wc -c", timeout_s=5)
    assert outcome.value["stdout"] == "1\n0\n"


async def test_standard_output_can_be_reopened_by_path(runner: Runner) -> None:
    outcome = await runner.bash(
        "dash -c 'echo one > /dev/stdout'; echo two | tee /dev/stderr; cat <(echo three)"
    )
    assert (outcome.value["stdout"], outcome.value["stderr"]) == ("one\ntwo\nthree\n", "two\n")


async def test_process_cannot_exceed_its_memory_limit(runner: Runner) -> None:
    outcome = await runner.bash(python("bytearray(2 << 30)"))
    assert "MemoryError" in str(outcome.value["stderr"])


async def test_file_cannot_exceed_its_size_limit(runner: Runner) -> None:
    outcome = await runner.bash("head -c 200000000 /dev/zero > big")
    assert outcome.value["exit_code"] != 0
    assert (runner.workspace.directory / "big").stat().st_size <= runner.limits.sandbox.file_size_bytes


@pytest.mark.parametrize(("path", "size"), [("/tmp/x", "65M"), ("/dev/shm/x", "17M"), ("/home/x", "2M")])
async def test_scratch_space_has_a_size_limit(runner: Runner, path: str, size: str) -> None:
    outcome = await runner.bash(f"echo ok > {path}.small && head -c {size} /dev/zero > {path}")
    assert "No space left" in str(outcome.value["stderr"]) or "File size limit" in str(
        outcome.value["stderr"]
    )


async def test_scratch_space_does_not_outlive_the_call(runner: Runner) -> None:
    await runner.bash("touch /tmp/x /home/x /dev/shm/x")
    assert (await runner.bash("ls -A /tmp /home /dev/shm")).value[
        "stdout"
    ] == "/dev/shm:\n\n/home:\n\n/tmp:\n"


async def test_sandbox_inherits_no_descriptor_of_the_runner(runner: Runner) -> None:
    outcome = await runner.bash(
        "for fd in /proc/1/fd/* /proc/$$/fd/*; do readlink $fd; done; ls /proc | grep -c '^[0-9]'"
    )
    links = str(outcome.value["stdout"]).split()
    assert {link for link in links[:-1] if not link.startswith(("pipe:", "/dev/null"))} <= {
        "anon_inode:[eventfd]",
        "anon_inode:[signalfd]",
    }
    assert int(links[-1]) < 8


async def test_namespaces_mounts_and_roots_are_refused(runner: Runner) -> None:
    commands = ["unshare -Ur id", "unshare -m true", "mount -t tmpfs x /tmp", "chroot / true"]
    outcome = await runner.bash("\n".join(f"{command} && echo '{command}'" for command in commands))
    assert outcome.value["stdout"] == ""
    refused = str(outcome.value["stderr"])
    assert refused.count("Operation not permitted") + refused.count("superuser") == len(commands)


_CALL = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    for number, arguments in {calls}:
        print(libc.syscall(number, *map(ctypes.c_long, arguments)), ctypes.get_errno())
"""
_REFUSED = (
    ("keyctl", (0, 0, 0), 1),
    ("add_key", (0, 0, 0, 0, 0), 1),
    ("bpf", (0, 0, 0), 1),
    ("perf_event_open", (0, 0, 0, 0, 0), 1),
    ("io_uring_setup", (1, 0), 1),
    ("ptrace", (0, 0, 0, 0), 1),
    ("process_vm_readv", (1, 0, 0, 0, 0, 0), 1),
    ("userfaultfd", (0,), 1),
    ("setns", (0, 0), 1),
    ("mount", (0, 0, 0, 0, 0), 1),
    ("open_by_handle_at", (0, 0, 0), 1),
    ("kexec_load", (0, 0, 0, 0), 1),
    ("unshare", (0x10000000,), 1),
    ("unshare", (0x00000080,), 1),
    ("clone", (0x10000000 | 17, 0, 0, 0, 0), 1),
    ("clone3", (0, 0), 38),
    ("ioctl", (0, 0x5412, 0), 1),
    ("ioctl", (0, 0x5412 | 1 << 32, 0), 1),
    ("socket", (16, 3, 0), 1),
    ("socket", (17, 3, 0), 1),
    ("socket", (38, 5, 0), 1),
    ("socket", (40 | 1 << 32, 1, 0), 1),
)
"""System calls with their arguments and their required error number."""


async def test_dangerous_system_calls_are_refused_by_number(runner: Runner) -> None:
    numbers = [pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) for name, _, _ in _REFUSED]
    calls = [(number, arguments) for number, (_, arguments, _) in zip(numbers, _REFUSED, strict=True)]
    outcome = await runner.bash(python(_CALL.format(calls=calls)))
    outputs = str(outcome.value["stdout"]).splitlines()
    assert list(zip(_REFUSED, outputs, strict=True)) == [(call, f"-1 {call[2]}") for call in _REFUSED]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 and int 0x80 belong to x86-64")
async def test_system_call_of_another_abi_kills_the_process(runner: Runner) -> None:
    x32_getpid = _CALL.format(calls=[(0x40000000 + 39, ())])
    int_80 = """
        import ctypes, mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    """
    assert (await runner.bash(python(x32_getpid))).value["exit_code"] == 159
    assert (await runner.bash(python(int_80))).value["exit_code"] == 159


async def test_ordinary_programs_run_under_the_limits(runner: Runner) -> None:
    pool = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(32) as pool:
            print(sum(pool.map(lambda x: x * x, range(100))))
    """
    assert (await runner.bash(python(pool))).value["stdout"] == "328350\n"
    outcome = await runner.bash(
        "git init -q r 2>/dev/null; awk 'BEGIN{print 6*7}'; sort <<< $'b\\na' | head -1"
    )
    assert outcome.value["stdout"] == "42\na\n"


class TestMemoryOfACall:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(sandbox=SandboxLimits(memory_bytes=100 * 1024 * 1024, watchdog_interval_s=0.05))

    async def test_many_small_processes_together_are_killed(self, runner: Runner) -> None:
        hogs = python("""
            import os, signal
            for _ in range(6):
                if os.fork() == 0:
                    block = bytearray(b"x") * (30 << 20)
                    signal.pause()
            os.wait()
        """)
        outcome = await runner.bash(hogs)
        assert (outcome.error_kind, outcome.value["killed_reason"]) == ("tool_error", "memory_limit")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
