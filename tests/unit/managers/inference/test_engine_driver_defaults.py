"""What a driver leaves out: it stands for an engine that lacks the ability."""

from __future__ import annotations

from typing import cast

import pytest
from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineDriver,
    EngineHealth,
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    Sampling,
    UnsupportedError,
    UpdateMode,
    VersionSpan,
    WeightUpdate,
)
from callsheet.managers.inference.engine_kind import with_defaults
from callsheet.managers.inference.weights import DiskWeights

REQUEST = GenerateRequest("r", (1,), Sampling(max_new_tokens=1))


class Foreign:
    """Has what an engine must have, and nothing of ours."""

    capabilities = EngineCapabilities(
        update_modes=frozenset(),
        version_spans=True,
        prefix_cache=False,
        batch_invariant=True,
        stop_texts=False,
    )
    policy_version = 3
    load = EngineLoad(running=0, waiting=0, kv_tokens_used=0, kv_tokens_total=8)
    health = EngineHealth(alive=True)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Says 7."""
        return Generation((7,), (0.0,), FinishReason.LENGTH, (VersionSpan(3, 0, 1),), seed=0)

    async def abort(self, request_id: str) -> None:
        """Its requests are over at once."""

    async def close(self) -> None:
        """Has nothing to release."""


async def test_a_driver_that_is_no_subclass_gets_what_it_lacks() -> None:
    """It keeps what it has, and says of all else that it cannot."""
    driver = with_defaults(cast(EngineDriver, Foreign()))
    assert isinstance(driver, EngineDriver)
    assert (await driver.generate(REQUEST)).token_ids == (7,)
    assert await driver.read_policy_version() == 3
    assert driver.incarnation == ""
    await driver.serve()
    update = WeightUpdate(DiskWeights("anywhere"), 4, UpdateMode.DRAIN)
    with pytest.raises(UnsupportedError):
        await driver.update_weights(update)


def test_a_subclass_stays_as_it_is() -> None:
    """Only what lacks something is changed."""
    own = with_defaults(cast(EngineDriver, Foreign()))
    kind = type(own)
    assert type(with_defaults(own)) is kind
