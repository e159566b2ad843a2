"""The seccomp programs of commands and of the page converter.

pyseccomp loads libseccomp when it is imported, so it is imported on first use: a missing library becomes an
error that names its package.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Generator
from typing import TYPE_CHECKING

from banksman.tool_runner.sandbox.base import SandboxUnavailable

if TYPE_CHECKING:
    import pyseccomp  # pyright: ignore[reportMissingTypeStubs] - the module carries its own annotations

_DENIED = (
    # Mounts and the root directory.
    "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount",
    "open_tree", "mount_setattr", "setns",
    # Key rings of the kernel are shared by all processes of a user, across namespaces.
    "keyctl", "add_key", "request_key",
    # Large attack surfaces of the kernel that no tool needs.
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "fanotify_init", "vmsplice", "quotactl", "quotactl_fd",
    # Other processes.
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    # File handles bypass path checks.
    "name_to_handle_at", "open_by_handle_at",
    # The machine.
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon",
    "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
    "syslog", "acct", "lookup_dcookie", "nfsservctl", "vhangup",
    "iopl", "ioperm", "modify_ldt", "move_pages", "migrate_pages", "mbind", "set_mempolicy",
)  # fmt: skip

_ABSENT = (
    # Memory outside of processes, which no limit per process counts.
    "memfd_create", "memfd_secret", "shmget", "msgget", "semget",
    # Its flags are behind a pointer, which a seccomp filter cannot read; libc falls back to clone.
    "clone3",
)  # fmt: skip
"""Refused with ENOSYS, so that programs use a fall-back."""

_CLONE_NAMESPACE_BITS = (
    0x00020000,  # mount
    0x02000000,  # cgroup
    0x04000000,  # uts
    0x08000000,  # ipc
    0x10000000,  # user
    0x20000000,  # pid
    0x40000000,  # net
)
_CLONE_NEWTIME = 0x00000080
"""Only for `unshare`: in `clone`, the low byte is the signal that the parent receives."""

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_LOW_32_BITS = 0xFFFFFFFF
"""The kernel uses only these bits of an int argument; comparing 64 bits would miss a set high bit."""
_DENIED_SOCKET_FAMILIES = (
    16,  # NETLINK
    17,  # PACKET
    21,  # RDS
    29,  # CAN
    30,  # TIPC
    31,  # BLUETOOTH
    38,  # ALG
    40,  # VSOCK
    44,  # XDP
)


_SOL_SOCKET, _SO_SNDBUF, _SO_RCVBUF = 1, 7, 8
_BUFFER_SIZES = tuple(((1, _SOL_SOCKET), (2, option)) for option in (_SO_SNDBUF, _SO_RCVBUF))
"""Socket options that succeed without effect, as (argument index, value) pairs.

Socket buffers are kernel memory, which no limit per process counts. Programs expect these options to
succeed, and the kernel may trim the requested size anyway (socket(7)).
"""

_CONVERTER_CALLS = (
    "read", "write", "close", "fstat", "newfstatat", "lseek",
    "brk", "munmap", "mremap", "madvise",
    "futex", "sched_yield", "sched_getaffinity", "rt_sigreturn", "rt_sigaction", "rt_sigprocmask",
    "sigaltstack", "getpid", "gettid", "clock_gettime", "clock_getres", "gettimeofday", "getrandom",
    "exit", "exit_group",
)  # fmt: skip
_PROT_EXEC = 0x4
_CLONE_THREAD = 0x10000


def command_filter() -> bytes:
    """Build the BPF program of every sandbox. It allows all system calls except the listed ones.

    System calls of another ABI (x32, int 0x80) kill the process: their numbers would bypass the filter.
    """
    with _libseccomp():
        import pyseccomp  # pyright: ignore[reportMissingTypeStubs]

        rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ALLOW)
        eperm = pyseccomp.ERRNO(errno.EPERM)
        for name in _DENIED:
            _add(rules, eperm, name)
        for bit in _CLONE_NAMESPACE_BITS:
            _add(rules, eperm, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, bit, bit))
        for bit in (*_CLONE_NAMESPACE_BITS, _CLONE_NEWTIME):
            _add(rules, eperm, "unshare", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, bit, bit))
        for name in _ABSENT:
            _add(rules, pyseccomp.ERRNO(errno.ENOSYS), name)
        for request in (_TIOCSTI, _TIOCLINUX):
            _add(rules, eperm, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _LOW_32_BITS, request))
        for family in _DENIED_SOCKET_FAMILIES:
            _add(rules, eperm, "socket", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, family))
        for option in _BUFFER_SIZES:
            level, name = (pyseccomp.Arg(at, pyseccomp.MASKED_EQ, _LOW_32_BITS, is_) for at, is_ in option)
            _add(rules, pyseccomp.ERRNO(0), "setsockopt", level, name)
        return _exported(rules)


@functools.cache
def converter_filter(*, threads: bool = False) -> bytes:
    """Build the BPF program of a converter, which may use memory, clocks and its inherited descriptors.

    Every other system call fails with EPERM, as does a request for executable memory. A converter thus has no
    files, sockets or processes. With `threads` it may start threads, which have the same filter: libraries of
    images start one for each image. System calls of another ABI (x32, int 0x80) kill the process.
    """
    with _libseccomp():
        import pyseccomp  # pyright: ignore[reportMissingTypeStubs]

        rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ERRNO(errno.EPERM))
        for name in _CONVERTER_CALLS:
            _add(rules, pyseccomp.ALLOW, name)
        for name in ("mmap", "mprotect"):
            _add(rules, pyseccomp.ALLOW, name, pyseccomp.Arg(2, pyseccomp.MASKED_EQ, _PROT_EXEC, 0))
        if threads:
            # The flags of clone3 are in memory, which a filter does not see; glibc then calls clone.
            _add(rules, pyseccomp.ERRNO(errno.ENOSYS), "clone3")
            thread = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
            _add(rules, pyseccomp.ALLOW, "clone", thread)
            for name in ("set_robust_list", "rseq"):
                _add(rules, pyseccomp.ALLOW, name)
        return _exported(rules)


@contextlib.contextmanager
def _libseccomp() -> Generator[None]:
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"libseccomp: install the package libseccomp2 ({error})", remedy="apt-get install libseccomp2"
        ) from error


def _add(rules: pyseccomp.SyscallFilter, action: int, name: str, *conditions: pyseccomp.Arg) -> None:
    import pyseccomp  # pyright: ignore[reportMissingTypeStubs]

    # libseccomp returns a negative number for a system call that it or this architecture does not have.
    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:
        rules.add_rule(action, name, *conditions)


def _exported(rules: pyseccomp.SyscallFilter) -> bytes:
    with os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as program:
        rules.export_bpf(program)
        program.seek(0)
        return program.read()
