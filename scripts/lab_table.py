"""A page of docs/lab whose table is written by runs; what they found lies beside it as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent / "docs" / "lab"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

Results = Mapping[str, Mapping[str, object]]
Rows = Callable[[Results], Sequence[Sequence[str]]]


def note_results(page: Path, results: Results, rows_of: Rows) -> None:
    """Notes the results of a run beside those of others, and writes the page's table anew.

    Args:
        page: The page, with the marks of the table in it.
        results: The results by name.
        rows_of: Makes the table's rows, its head first, of all results.
    """
    data = page.with_suffix(".json")
    earlier = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    known = {**earlier, **results}
    data.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    head, *rows = rows_of(known)
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([before + BEGIN, *lines, END + after]), encoding="utf-8")
