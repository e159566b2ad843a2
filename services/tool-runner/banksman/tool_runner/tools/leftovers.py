"""Reports the processes that a command leaves running, which end with its call.

They are seen only from within the sandbox, before the command's own shell ends. Only a command that may start
one runs in a second shell, which looks for them. All others run as they are.
"""

from __future__ import annotations

import re
import shlex

_MAY_LEAVE = re.compile(r"(?<![&<>|\\])&(?![&>])|\b(?:nohup|setsid|disown|daemon|coproc|start)|--?d\b")
"""A job of the shell, or a word by which programs leave their shell."""
MAX_NAMES = 10
_SCRIPT = r"""
bash --noprofile --norc -c {script}
__code=$?
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
exit $__code
"""


def reporting(script: str) -> str:
    """Return a script that runs `script` and writes to standard error which processes it left running."""
    if not _MAY_LEAVE.search(script):
        return script
    return _SCRIPT.format(script=shlex.quote(script), most=MAX_NAMES)
