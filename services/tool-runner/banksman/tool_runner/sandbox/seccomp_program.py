from __future__ import annotations

from banksman.tool_runner.sandbox.base import SandboxUnavailable


def seccomp_program() -> bytes:
    """Build the seccomp filter of every sandbox.

    Raises:
        SandboxUnavailable: libseccomp is not installed.
    """
    try:
        # pyseccomp loads libseccomp at import; importing it here lets the error name the missing package.
        from banksman.tool_runner.sandbox.seccomp import build_filter
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"libseccomp: install the package libseccomp2 ({error})", remedy="apt-get install libseccomp2"
        ) from error
    return build_filter()
