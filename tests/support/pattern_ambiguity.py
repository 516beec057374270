"""Whether a regular expression can take more than linear time: an analysis of its automaton, without any text.

Python's matcher goes back and tries again where a text can be read in several ways and what follows fits none of them.
The ways grow with the text only if a word leads from one state to itself and to another state that it keeps as well
(Weber and Seidl, 1991). A search adds one such state of its own: the place where it may still begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from typing import Any

codes: Any = import_module("re._constants")
sre: Any = import_module("re._parser")
_EVERY = "aZ09_ \n\t~-\u00e9\u0663\u00a0\U0001f600"
_MANY = 32
_CATEGORIES: dict[Any, str] = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


@dataclass
class _Automaton:
    """Edges by state: those that read a character of a set, and those that read none and may ask for a place."""

    letters: frozenset[str]
    reading: dict[int, list[tuple[frozenset[str], int]]] = field(default_factory=dict)
    free: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    size: int = 1

    def state(self) -> int:
        self.size += 1
        return self.size - 1

    def closure(self, state: int, *, asking: bool = True) -> set[int]:
        found, waiting = {state}, [state]
        while waiting:
            for other, asks in self.free.get(waiting.pop(), ()):
                if other not in found and (asking or not asks):
                    found.add(other)
                    waiting.append(other)
        return found

    def steps(self) -> dict[int, list[tuple[frozenset[str], int]]]:
        return {
            state: [edge for each in self.closure(state) for edge in self.reading.get(each, ())]
            for state in range(self.size)
        }

    def put(self, parsed: Iterable[Any], begin: int, flags: int) -> int:
        """Adds a parsed pattern behind a state, and returns the state behind it."""
        for code, value in parsed:
            begin = self._put_one(code, value, begin, flags)
        return begin

    def _put_one(self, code: Any, value: Any, begin: int, flags: int) -> int:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, repeated = value
            return self._repeat(least, most, repeated, begin, flags)
        if code is codes.SUBPATTERN:
            return self.put(value[3], begin, flags | value[1])
        if code is codes.BRANCH:
            ends = [self.put(each, begin, flags) for each in value[1]]
            return self._joined(ends)
        end = self.state()
        if code in (codes.AT, codes.ASSERT, codes.ASSERT_NOT, codes.GROUPREF):
            self.free.setdefault(begin, []).append((end, True))
        else:
            letters = frozenset(each for each in self.letters if _reads(code, value, each, flags))
            self.reading.setdefault(begin, []).append((letters, end))
        return end

    def _joined(self, ends: Iterable[int]) -> int:
        end = self.state()
        for each in ends:
            self.free.setdefault(each, []).append((end, False))
        return end

    def _repeat(self, least: int, most: Any, parsed: Any, begin: int, flags: int) -> int:
        for _ in range(min(least, _MANY)):
            begin = self.put(parsed, begin, flags)
        if most is codes.MAXREPEAT or most > _MANY:
            begin = self._joined([begin])
            self.free.setdefault(self.put(parsed, begin, flags), []).append((begin, False))
            return self._joined([begin])
        ends = [begin]
        for _ in range(most - least):
            ends.append(self.put(parsed, ends[-1], flags))
        return self._joined(ends)


def _reads(code: Any, value: Any, letter: str, flags: int) -> bool:
    if code is codes.ANY:
        return letter != "\n" or bool(flags & re.DOTALL)
    if code is codes.IN:
        negated = value[0][0] is codes.NEGATE
        return negated != any(_reads(inner, each, letter, flags) for inner, each in value[negated:])
    if code is codes.NOT_LITERAL:
        return not _reads(codes.LITERAL, value, letter, flags)
    forms = {letter, letter.lower(), letter.upper()} if flags & re.IGNORECASE else {letter}
    if code is codes.LITERAL:
        return any(form == chr(value) for form in forms)
    if code is codes.RANGE:
        return any(value[0] <= ord(form) <= value[1] for form in forms if len(form) == 1)
    return re.match(_CATEGORIES[value], letter) is not None


def _letters(parsed: Any) -> Iterator[str]:
    """Yields characters on both sides of each bound in a pattern."""
    for item in parsed:
        if (
            isinstance(item, int)
            and not isinstance(item, bool)
            and 0 < item < 0x10FFFF
            and not isinstance(item, type(codes.ANY))
        ):
            yield from (chr(item - 1), chr(item), chr(item + 1))
        elif isinstance(item, tuple | list | sre.SubPattern):
            yield from _letters(item)


def growth(pattern: str | bytes, flags: int, *, searches: bool, to_the_end: bool = False) -> str | None:
    """Returns why a pattern can take more than linear time; None where it cannot.

    Args:
        pattern: The pattern.
        flags: It is compiled with.
        searches: It may begin anywhere.
        to_the_end: It has to end with the text.
    """
    parsed = sre.parse(pattern, flags)
    flags = parsed.state.flags
    if parsed and parsed[0][0] is codes.ASSERT and parsed[0][1][1].getwidth()[1] < 1024:
        return None  # What looks ahead to the end bounds the text.
    automaton = _Automaton(frozenset({*_EVERY, *_letters(parsed)}))
    start = 0
    if searches and not (parsed and parsed[0] == (codes.AT, codes.AT_BEGINNING_STRING)):
        before, line = automaton.letters, automaton.state()
        by_lines = bool(parsed) and parsed[0] == (codes.AT, codes.AT_BEGINNING) and flags & re.MULTILINE
        automaton.reading[0] = [(before, 0), (frozenset("\n") if by_lines else before, line)]
        start = line if by_lines else 0
    final = automaton.put(parsed, start, flags)
    steps = automaton.steps()
    reach = {state: _reached(steps, state) for state in steps}
    loops = [state for state in steps if state in reach[state]]
    failing = [q for q in loops if to_the_end or final not in automaton.closure(q, asking=False)]
    for p, q in product(loops, failing):
        if p == q and _branches_and_returns(steps, p):
            return f"a repeat within a repeat: states {p}"
        if p != q and q in reach[p] and _keeps_both(steps, p, q):
            return f"two repeats that read the same: states {p} and {q}"
    return None


Steps = dict[int, list[tuple[frozenset[str], int]]]


def _reached(steps: Steps, begin: int) -> set[int]:
    found: set[int] = set()
    waiting = [begin]
    while waiting:
        for letters, other in steps[waiting.pop()]:
            if letters and other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _moves(steps: Steps, states: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for edges in product(*(steps[state] for state in states)):
        if frozenset.intersection(*(letters for letters, _ in edges)):
            yield tuple(other for _, other in edges)


def _all(steps: Steps, begin: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Returns what one word leads these states to together, for every word."""
    found: set[tuple[int, ...]] = set()
    waiting = [begin]
    while waiting:
        new = set(_moves(steps, waiting.pop())) - found
        found |= new
        waiting += new
    return found


def _keeps_both(steps: Steps, p: int, q: int) -> bool:
    return (p, q, q) in _all(steps, (p, p, q))


def _branches_and_returns(steps: Steps, p: int) -> bool:
    apart = [states for states in _all(steps, (p, p)) if states[0] != states[1]]
    return any((p, p) in _all(steps, states) for states in apart)
