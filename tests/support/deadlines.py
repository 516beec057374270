"""A pytest plugin: an async test that hangs is cancelled and fails, and the tests after it go on.

pytest-timeout interrupts the event loop, which all async tests share: the hung test would stay in it, and every async
test after it would hang as well. It remains for what cannot be cancelled, a while later.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

_SHARE = 0.9
"""How much of the time that pytest-timeout gives a test it may take itself; fixtures have the rest."""

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def limit_s_of(item: pytest.Function) -> float:
    """Seconds that an async test may take."""
    marker = item.get_closest_marker("timeout")
    return _SHARE * float(marker.args[0] if marker else item.config.getini("timeout"))


def ending_in_time(test: AsyncTest, limit_s: float) -> AsyncTest:
    """Returns a test that is cancelled and fails if it does not end in time."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with anyio.move_on_after(limit_s) as scope:
            await test(**fixtures)
        if scope.cancelled_caught:
            pytest.fail(f"hung: did not end in {limit_s:g} s and was cancelled")

    return limited


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Gives an async test a deadline before anyio runs it."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = ending_in_time(pyfuncitem.obj, limit_s_of(pyfuncitem))
