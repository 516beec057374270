"""The table of drivers by cases of the contract suite, kept in docs/lab."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

NAME = "2026-11-engines"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
MARKS = {"ok": "yes", "lacks": "-", "failed": "**no**"}


def note_results(place: Path, results: Mapping[str, Mapping[str, str]], *, release: str, date: str) -> None:
    """Notes the results of a run, beside those of drivers that were not in it, and writes the table anew.

    Args:
        place: Directory of the page and of its data.
        results: "ok", "lacks" or "failed" by driver and case.
        release: What it ran against.
        date: When, as 2026-11-23.
    """
    data = place / f"{NAME}.json"
    known = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    for driver, cases in results.items():
        known[driver] = {"date": date, "against": release, "cases": dict(sorted(cases.items()))}
    data.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = place / f"{NAME}.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table_of(known)}\n{END}{after}", encoding="utf-8")


def table_of(known: Mapping[str, Mapping[str, object]]) -> str:
    """The table in Markdown."""
    drivers = sorted(known)
    cases = {driver: dict(known[driver]["cases"]) for driver in drivers}  # type: ignore[call-overload]
    titles = sorted({title for told in cases.values() for title in told})
    rows = [
        ["case", *drivers],
        ["---"] * (len(drivers) + 1),
        ["*ran against*", *(str(known[driver]["against"] or "itself") for driver in drivers)],
        ["*date*", *(str(known[driver]["date"]) for driver in drivers)],
        *([title, *(MARKS.get(cases[driver].get(title, ""), "not run") for driver in drivers)] for title in titles),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
