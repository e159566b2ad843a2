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
    """Build the BPF program of a converter, which may use memory, clocks and its inherited descriptors.

    Every other system call fails with EPERM, as does a request for executable memory. A converter thus has no
    files, sockets or processes. System calls of another ABI (x32, int 0x80) kill the process.

    Raises:
        OSError: the program cannot be exported.
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
    # libseccomp returns a negative number for a system call that this architecture does not have.
    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:
        rules.add_rule(pyseccomp.ALLOW, name, *conditions)
