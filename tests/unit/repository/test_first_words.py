"""Docstrings that begin with a word of a subordinate clause: their number in each room may only fall.

CONTRIBUTING.md has the patterns of plain English. This one is never right, so it is counted; the rest is for readers.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.statement_budget import room_of, sources

ROOT = Path(__file__).parents[3]
_WRONG = re.compile(r'^ *"""(?:What|Which|Who|Where|Whether|Of)\b.*', re.MULTILINE)
# Lower a number when you mend some of its docstrings. A room without a number has none.
_ROOMS = """\
benchmarks 5
benchmarks/demo 6
benchmarks/dispatch 4
benchmarks/measuring 8
benchmarks/real 4
benchmarks/sandbox 1
benchmarks/simulator 33
examples 3
scripts 9
tests/adapters 2
tests/browser 4
tests/contract 25
tests/faults 3
tests/integration 58
tests/property 18
tests/sim 3
tests/soak 21
tests/support 68
tests/trainers 18
tests/unit 119
"""
MOST = {room: int(number) for room, number in (line.split() for line in _ROOMS.splitlines())}


def test_no_room_has_more_of_them_than_before() -> None:
    found: dict[str, list[str]] = {}
    for path in sources(ROOT):
        lines = _WRONG.findall((ROOT / path).read_text(encoding="utf-8"))
        found.setdefault(room_of(path), []).extend(f"{path}: {line.strip()}" for line in lines)
    grown = {room: lines for room, lines in found.items() if len(lines) > MOST.get(room, 0)}
    assert not grown, "begin these docstrings with a verb or a noun, see CONTRIBUTING.md"


def test_only_the_first_word_of_a_docstring_counts() -> None:
    text = (
        '    """What waits."""\n    """Whatever."""\n    """Of a job.\n    """Reports if it waits.\n    # What waits.\n'
    )
    assert [line.strip() for line in _WRONG.findall(text)] == ['"""What waits."""', '"""Of a job.']
