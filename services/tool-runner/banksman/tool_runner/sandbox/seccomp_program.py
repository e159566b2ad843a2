from __future__ import annotations

from banksman.tool_runner.sandbox.base import SandboxUnavailable


def seccomp_program() -> bytes:
    """The filter of every sandbox.

    Raises:
        SandboxUnavailable: when libseccomp is not installed.
    """
    try:
        # Loads libseccomp when imported, so a machine without it can still say what is missing.
        from banksman.tool_runner.sandbox.seccomp import build_filter
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"libseccomp: install the package libseccomp2 ({error})", remedy="apt-get install libseccomp2"
        ) from error
    return build_filter()
