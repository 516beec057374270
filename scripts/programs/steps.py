"""Steps of the scenarios of E2B's clients and of their users, each of which must go as expected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def expect(what: str, found: object, wanted: object) -> None:
    """Raises AssertionError if something is not as wanted."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r:.300} is not {wanted!r:.300}")


def raised(kind: str, call: Callable[[], object], text: str = "") -> Any:
    """Returns the exception that a call raises, which must be of one of the classes and say something."""
    try:
        call()
    except Exception as error:
        expect(f"{type(error).__name__} is {kind}", type(error).__name__ in kind.split("|"), True)
        expect(f"{text!r} in {error}", text in str(error), True)
        return error
    raise AssertionError(f"no {kind}")


def run_steps(steps: Mapping[str, Callable[[], object]]) -> bool:
    """Runs steps and prints how each went and its seconds; returns whether one differs from what is expected."""
    differs = False
    for name, step in steps.items():
        begun = time.monotonic()
        try:
            step()
            said = "ok"
        except Exception as error:
            differs = True
            said = f"{type(error).__name__}: {error}"
        print(f"{name}: {said} ({time.monotonic() - begun:.1f} s)", flush=True)
    return differs
