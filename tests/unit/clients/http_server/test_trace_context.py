"""Which spans callers may name, by W3C Trace Context."""

from __future__ import annotations

import pytest
from callsheet.http_server.trace_context import traceparent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
BAD = [
    "",
    GOOD[:-1],
    f"{GOOD}0",
    f"{GOOD}-",
    f"{GOOD}-more",
    GOOD.upper(),
    f"ff{GOOD[2:]}",
    f"0g{GOOD[2:]}",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    GOOD.replace("-", "_"),
    f"01{GOOD[2:]}.what",
    f"{GOOD},{GOOD}",
    f"{GOOD}\n",
    f"00-{TRACE}-{SPAN}-\u0661\u0661",
    "\x1b[2J" * 20,
]


@pytest.mark.parametrize("given", [GOOD, f" \t{GOOD} ", f"00-{TRACE}-{SPAN}-00"])
def test_a_span_is_taken(given: str) -> None:
    assert traceparent_of([("host", "h"), ("traceparent", given)]) == given.strip()


@pytest.mark.parametrize("given", [f"cc{GOOD[2:]}", f"01{GOOD[2:]}-what-else-it-says"])
def test_one_of_a_later_version_is_told_in_the_first(given: str) -> None:
    assert traceparent_of([("traceparent", given)]) == GOOD


@pytest.mark.parametrize("given", BAD)
def test_a_broken_one_is_none(given: str) -> None:
    assert traceparent_of([("traceparent", given)]) is None


def test_of_several_none_is_taken() -> None:
    assert traceparent_of([("traceparent", GOOD), ("traceparent", GOOD)]) is None
    assert traceparent_of([("tracestate", GOOD)]) is None
