"""Draws the states of an action and the changes between them, from the core's table, into the page of the architecture.

    .venv/bin/python scripts/action_states.py

A line is a change: it may come in each state with a dot, and leads to the state at its arrow.
"""

from __future__ import annotations

from pathlib import Path

from callsheet.scheduler.core.state.transitions import CHANGES, Change
from callsheet.scheduler.core.words.model import ActionState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "concepts" / "architecture.md"
BEGIN, END = "<!-- action states: begin -->\n", "<!-- action states: end -->"
LANE = 12


def picture() -> str:
    """Returns a lane for each state and a line for each change."""
    states = list(ActionState)
    lines = [" " * LANE + "".join(state.value.ljust(LANE) for state in states)]
    lines += [_line(change, states) for change in CHANGES]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _line(change: Change, states: list[ActionState]) -> str:
    places = {state: LANE * (1 + index) + 2 for index, state in enumerate(states)}
    dots, arrow = [places[state] for state in change.sources], places[change.target]
    first, last = min([*dots, arrow]), max([*dots, arrow])
    drawn = dict.fromkeys(places.values(), "│")
    drawn |= dict.fromkeys(range(first if dots else arrow - 3, last), "─")
    drawn |= {arrow: "►" if arrow == last else "◄"} | dict.fromkeys(dots, "●")
    drawn.update(enumerate(change.name))
    return "".join(drawn.get(place, " ") for place in range(max(drawn) + 1))


def drawn_on(page: str) -> str:
    """Returns the text of the page with the picture between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n```text\n{picture()}```\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(drawn_on(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
