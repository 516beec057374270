"""Which managers a manager's token is for."""

from __future__ import annotations

import pytest
from callsheet.scheduler.access.identity import Identity, Scope, is_part_of
from callsheet.scheduler.core.words.refusals import RefusedError


@pytest.mark.parametrize("manager_id", ["gpu", "gpu#0", "gpu#17"])
def test_a_token_is_for_its_manager_and_the_parts_of_it(manager_id: str) -> None:
    assert is_part_of(manager_id, "gpu")
    Identity(Scope.MANAGER, "gpu").require_manager("registration.manager_id", manager_id)


@pytest.mark.parametrize(
    "manager_id", ["gpu2", "gpu#", "gpu#x", "gpu#0#1", "gpu#-1", "#0", "other#0", "gpu-0", "gpu#٣"]
)
def test_it_is_for_no_other(manager_id: str) -> None:
    assert not is_part_of(manager_id, "gpu")
    with pytest.raises(RefusedError):
        Identity(Scope.MANAGER, "gpu").require_manager("registration.manager_id", manager_id)
