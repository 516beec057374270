"""An async test that hangs is cancelled and fails; every async test has such a deadline."""

from __future__ import annotations

import anyio
import pytest

from tests.support.deadlines import ending_in_time, limit_s_of


async def test_what_hangs_is_cancelled_and_fails() -> None:
    ended = anyio.Event()

    async def hangs(event: anyio.Event) -> None:
        try:
            await event.wait()
        finally:
            ended.set()

    with pytest.raises(pytest.fail.Exception, match=r"did not end in 0\.01 s"):
        await ending_in_time(hangs, 0.01)(event=anyio.Event())
    assert ended.is_set()


async def test_what_a_test_raises_is_its_own() -> None:
    async def raises() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await ending_in_time(raises, 60.0)()


@pytest.mark.timeout(200)
async def test_an_async_test_ends_before_its_whole_time(request: pytest.FixtureRequest) -> None:
    assert isinstance(request.node, pytest.Function)
    assert request.node.obj.__wrapped__ is not None
    assert limit_s_of(request.node) == pytest.approx(180.0)
