"""What makes a trace in Chrome's format wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def faults_of(events: list[Event]) -> Iterator[str]:
    """What Perfetto would draw wrongly, or drop."""
    names = {each["pid"] for each in events if each["ph"] == "M" and each["name"] == "process_name"}
    lanes = {(each["pid"], each["tid"]) for each in events if each["ph"] == "M" and each["name"] == "thread_name"}
    slices: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for each in events:
        if missing := {"name", "ts", "pid", "tid"} - each.keys():
            yield f"an event without {missing}: {each}"
        if each["ph"] == "X":
            slices[each["pid"], each["tid"]].append(each)
        elif each["ph"] not in "Msf":
            yield f"an event of another phase: {each}"
    yield from (f"a lane without a name: {place}" for place in slices.keys() - lanes)
    # Perfetto makes one thread of all that have the number 0, and drops slices that overlap in it.
    yield from (f"a lane of the idle task: {place}" for place in lanes if place[1] == 0)
    yield from (f"a process without a name: {pid}" for pid, _ in slices if pid not in names)
    for place, of_lane in slices.items():
        of_lane.sort(key=lambda each: int(each["ts"]))
        yield from (f"no length: {each}" for each in of_lane if each["dur"] < 1)
        for before, after in pairwise(of_lane):
            if before["ts"] + before["dur"] > after["ts"]:
                yield f"two slices overlap in {place}: {before}, {after}"
    yield from _faults_of_arrows(events, slices)


def _faults_of_arrows(events: list[Event], slices: dict[tuple[int, int], list[Event]]) -> Iterator[str]:
    arrows: defaultdict[int, list[Event]] = defaultdict(list)
    for each in events:
        if each["ph"] in "sf":
            arrows[each["id"]].append(each)
            found = slices.get((each["pid"], each["tid"]), [])
            if not any(one["ts"] <= each["ts"] < one["ts"] + one["dur"] for one in found):
                yield f"an arrow that is bound to no slice: {each}"
            if each["ph"] == "f" and each.get("bp") != "e":
                yield f"an arrow that ends at the next slice: {each}"
    for pair in arrows.values():
        if [each["ph"] for each in pair] != ["s", "f"] or pair[0]["ts"] > pair[1]["ts"]:
            yield f"no pair: {pair}"


def slices_named(events: list[Event], name: str) -> list[Event]:
    """The slices of a name."""
    return [each for each in events if each["ph"] == "X" and each["name"] == name]


def place_of(events: list[Event], piece: Event) -> str:
    """The name of the process that an event is in."""
    (named,) = [each for each in events if each["name"] == "process_name" and each["pid"] == piece["pid"]]
    return str(named["args"]["name"])
