"""Record the store of the version in pyproject.toml.

python -m tools.golden_store

The version loses its last number: 1.2.3 writes the folder `1.2`. Do not record a version that is released.
"""

from __future__ import annotations

import sys

from tests.golden_stores.recording import record
from tests.golden_stores.stores import Store
from tools.release import project_version


def main() -> int:
    """Record the store; return the exit code."""
    store = Store(project_version().rpartition(".")[0])
    record(store)
    print(f"recorded tests/golden_stores/{store.version}; read the difference before you commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
