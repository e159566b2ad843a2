from __future__ import annotations

import errno
import functools
import os

import pyseccomp  # pyright: ignore[reportMissingTypeStubs] - the module carries its own annotations

_ALLOWED = (
    "read", "write", "close", "fstat", "newfstatat", "lseek",
    "brk", "munmap", "mremap", "madvise",
    "futex", "sched_yield", "sched_getaffinity", "rt_sigreturn", "rt_sigaction", "rt_sigprocmask",
    "sigaltstack", "getpid", "gettid", "clock_gettime", "clock_getres", "gettimeofday", "getrandom",
    "exit", "exit_group",
)  # fmt: skip
_PROT_EXEC = 0x4


@functools.cache
def build_filter() -> bytes:
    """The BPF program of a converter: memory, time, and the descriptors it was started with.

    Every other system call answers EPERM, and so does memory that could be executed: there are no files, no
    sockets, no processes. Those of another ABI (x32, int 0x80) kill the process.

    Raises:
        OSError: when the kernel has no room for it.
    """
    rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ERRNO(errno.EPERM))
    for name in _ALLOWED:
        _allow(rules, name)
    for name in ("mmap", "mprotect"):
        _allow(rules, name, pyseccomp.Arg(2, pyseccomp.MASKED_EQ, _PROT_EXEC, 0))
    with os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as program:
        rules.export_bpf(program)
        program.seek(0)
        return program.read()


def _allow(rules: pyseccomp.SyscallFilter, name: str, *conditions: pyseccomp.Arg) -> None:
    # A call that this architecture does not have has no number to be called by.
    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:
        rules.add_rule(pyseccomp.ALLOW, name, *conditions)
