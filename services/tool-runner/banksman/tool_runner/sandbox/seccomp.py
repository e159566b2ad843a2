from __future__ import annotations

import errno
import os

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


def build_filter() -> bytes:
    """Build the BPF program of every sandbox. It allows all system calls except the listed ones.

    System calls of another ABI (x32, int 0x80) kill the process: their numbers would bypass the filter.
    """
    rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ALLOW)
    eperm = pyseccomp.ERRNO(errno.EPERM)
    for name in _DENIED:
        _deny(rules, eperm, name)
    for bit in _CLONE_NAMESPACE_BITS:
        _deny(rules, eperm, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, bit, bit))
    for bit in (*_CLONE_NAMESPACE_BITS, _CLONE_NEWTIME):
        _deny(rules, eperm, "unshare", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, bit, bit))
    for name in _ABSENT:
        _deny(rules, pyseccomp.ERRNO(errno.ENOSYS), name)
    for request in (_TIOCSTI, _TIOCLINUX):
        _deny(rules, eperm, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _LOW_32_BITS, request))
    for family in _DENIED_SOCKET_FAMILIES:
        _deny(rules, eperm, "socket", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _LOW_32_BITS, family))
    for option in _BUFFER_SIZES:
        level, name = (pyseccomp.Arg(at, pyseccomp.MASKED_EQ, _LOW_32_BITS, is_) for at, is_ in option)
        _deny(rules, pyseccomp.ERRNO(0), "setsockopt", level, name)
    return _exported(rules)


def _deny(rules: pyseccomp.SyscallFilter, action: int, name: str, *conditions: pyseccomp.Arg) -> None:
    # libseccomp returns a negative number for a system call that it or this architecture does not have.
    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) < 0:
        return
    rules.add_rule(action, name, *conditions)


def _exported(rules: pyseccomp.SyscallFilter) -> bytes:
    with os.fdopen(os.memfd_create("seccomp", os.MFD_CLOEXEC), "w+b") as program:
        rules.export_bpf(program)
        program.seek(0)
        return program.read()
