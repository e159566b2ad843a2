"""Write the configurations in deploy/nats/ from the permissions in the code; `--check` only compares."""

import sys
from pathlib import Path

from banksman.deployment.profiles import files

FOLDER = Path(__file__).parents[1] / "deploy" / "nats"


def main() -> int:
    stale = [name for name, text in files().items() if _stored(name) != text]
    if "--check" in sys.argv:
        for name in stale:
            print(f"deploy/nats/{name} differs from what the code renders: run tools/nats_profiles.py")
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(files()[name], encoding="utf-8")
    return 0


def _stored(name: str) -> str:
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
