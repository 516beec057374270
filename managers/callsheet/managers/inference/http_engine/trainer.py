"""Waits for a trainer before a server is told to join its group: a server that joins nobody hangs for good."""

from __future__ import annotations

import anyio
from callsheet.managers.inference.driver import WeightUpdateError
from callsheet.managers.inference.weights import GroupWeights

LOOK_AGAIN_S = 0.1


async def await_trainer(source: GroupWeights, timeout_s: float) -> None:
    """Returns once somebody listens at a group's address, which must be reachable from here too.

    Raises:
        WeightUpdateError: Nobody did in time.
    """
    with anyio.move_on_after(timeout_s):
        while True:
            try:
                stream = await anyio.connect_tcp(source.address, source.port)
            except OSError:
                await anyio.sleep(LOOK_AGAIN_S)
            else:
                await stream.aclose()
                return
    where = f"{source.address}:{source.port}"
    raise WeightUpdateError(
        f"group {source.group_name!r}: nobody listened at {where} within {timeout_s:g} s", intact=True
    )
