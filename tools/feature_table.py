"""Write the table of docs/models.md that states which features work with which vendor.

python -m tests.vendors.results && python -m tools.feature_table
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "model-features.json", DOCS / "models.md"
BEGIN, END = "<!-- features: written by tools/feature_table.py -->\n", "<!-- end of features -->\n"


def table(found: Mapping[str, Mapping[str, str]], first: str = "vendor") -> str:
    """Return a Markdown table with a row for each model and a column for each feature."""
    names = list(next(iter(found.values())))
    rows = [[first, *names], ["---"] * (len(names) + 1)]
    rows += [[model, *(row[name].partition(":")[0] for name in names)] for model, row in found.items()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def page() -> str:
    """Return the page with the table of the stored results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(json.loads(RESULTS.read_text(encoding="utf-8"))) + END + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
