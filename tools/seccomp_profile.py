"""Write deploy/docker/seccomp-tool-runner.json: the system calls that the tool-runner's container may make.

The container has no capability and runs as an unprivileged user. In it, bubblewrap must create namespaces,
which an engine's default profile refuses. This profile therefore allows `clone`, `unshare`, `mount`,
`umount2` and `pivot_root`. Otherwise it refuses more than the default profile: it allows only four socket
families and one architecture per process, and neither ptrace nor io_uring.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyseccomp

OUTPUT = Path(__file__).resolve().parent.parent / "deploy" / "docker" / "seccomp-tool-runner.json"
ARCHITECTURES = {"SCMP_ARCH_X86_64": pyseccomp.Arch.X86_64, "SCMP_ARCH_AARCH64": pyseccomp.Arch.AARCH64}
HIGHEST_NUMBER = 600

REFUSED = {
    "the kernel itself": (
        "bpf create_module delete_module finit_module get_kernel_syms init_module kexec_file_load kexec_load "
        "nfsservctl perf_event_open query_module reboot syslog uselib _sysctl sysfs lookup_dcookie"
    ),
    "the machine's clock, swap, accounts and console": (
        "acct adjtimex clock_adjtime clock_adjtime64 clock_settime clock_settime64 ioperm iopl quotactl "
        "quotactl_fd setdomainname settimeofday stime swapoff swapon vhangup vserver"
    ),
    "other processes": (
        "kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace "
        "migrate_pages move_pages mbind set_mempolicy set_mempolicy_home_node get_mempolicy"
    ),
    "keys": "add_key keyctl request_key",
    "mounts that bubblewrap does not make": (
        "chroot fsconfig fsmount fsopen fspick mount_setattr move_mount name_to_handle_at open_by_handle_at "
        "open_tree setns umount"
    ),
    "parts of the kernel with a long record of vulnerabilities": (
        "fanotify_init fanotify_mark io_uring_enter io_uring_register io_uring_setup modify_ldt userfaultfd "
        "vm86 vm86old vmsplice"
    ),
}
"""The refused system calls by the resource that they access."""

SOCKET_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""AF_NETLINK is included because bubblewrap brings up the loopback of a new network namespace through it."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Arguments of `personality` that are allowed: the default, the 32-bit and uname26 variants, and the query
for the current personality. The variant without ASLR is refused."""

NEWER_THAN_LIBSECCOMP = "cachestat fchmodat2 futex_requeue futex_wait futex_wake map_shadow_stack mseal"
"""libc tries these calls first and falls back only on ENOSYS. An engine ignores unknown names."""


def main() -> None:
    """Write the profile."""
    OUTPUT.write_text(json.dumps(profile(), indent=2) + "\n")
    sys.stdout.write(f"{OUTPUT.name}\n")


def profile() -> dict[str, Any]:
    """Return the profile in the format that Docker and Podman read."""
    limited = {"socket", "personality"}
    allowed = sorted((known() | set(NEWER_THAN_LIBSECCOMP.split())) - refused() - limited)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [{"architecture": name, "subArchitectures": []} for name in ARCHITECTURES],
        "syscalls": [
            {"names": allowed, "action": "SCMP_ACT_ALLOW"},
            *(_allow_first_argument("socket", value) for value in SOCKET_FAMILIES.values()),
            *(_allow_first_argument("personality", value) for value in PERSONALITIES),
        ],
    }


def known() -> set[str]:
    """Return every system call that libseccomp knows on either architecture."""
    names: set[str] = set()
    for architecture in ARCHITECTURES.values():
        for number in range(HIGHEST_NUMBER):
            try:
                names.add(pyseccomp.resolve_syscall(architecture, number).decode())
            except ValueError:
                continue
    return names


def refused() -> set[str]:
    """Return every refused system call."""
    return {name for names in REFUSED.values() for name in names.split()}


def _allow_first_argument(name: str, value: int) -> dict[str, Any]:
    argument = {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


if __name__ == "__main__":
    main()
