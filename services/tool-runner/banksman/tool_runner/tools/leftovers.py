"""Reports the processes that a command leaves running, which end with its call.

They are seen only from within the sandbox, before the command's own shell ends: from its EXIT trap. Only a
command that may start one gets it. A command with an EXIT trap of its own replaces it.
"""

from __future__ import annotations

import re
import shlex

_MAY_LEAVE = re.compile(r"(?<![&<>|\\])&(?![&>])|\b(?:nohup|setsid|disown|daemon|coproc|start)|--?d\b")
"""A job of the shell, or a word by which programs leave their shell."""
MAX_NAMES = 10
_TRAP = r"""
{{ set +efux; }} 2>/dev/null
__names=()
for __process in /proc/[0-9]*; do
    __pid=${{__process#/proc/}}
    [[ $__pid == 1 || $__pid == $$ ]] && continue
    read -r __name <$__process/comm || continue
    read -r _ _ __state _ <$__process/stat && [[ $__state == Z ]] && continue
    __names+=("$__name ($__pid)")
done 2>/dev/null
if ((${{#__names[@]}})); then
    __left=$(IFS=,; echo "${{__names[*]:0:{most}}}")
    echo "[Ended with this call, because it left them running: $__left. Use background: true.]" >&2
fi
"""


def reporting(script: str) -> str:
    """Return the script with a report, on standard error, of the processes that it left running.

    The shell of the script is the first one, so that it survives when it kills all other processes.
    """
    if not _MAY_LEAVE.search(script):
        return script
    return f"trap {shlex.quote(_TRAP.format(most=MAX_NAMES))} EXIT; {script}"
