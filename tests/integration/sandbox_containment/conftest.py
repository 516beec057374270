"""Every kind of sandbox that isolates."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import Variant, settings_for, variants


@pytest.fixture(params=variants(Isolation.BUBBLEWRAP, Isolation.DOCKER), ids=str, scope="module")
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    """Settings of a manager with such sandboxes."""
    variant: Variant = request.param
    return settings_for(variant, tmp_path_factory.mktemp("manager"))
