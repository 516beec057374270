"""Settings of sandbox managers, pool users, environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callsheet.managers.sandbox.agent_client.command_defaults import merged_environment
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.isolation.bubblewrap import find_bwrap
from callsheet.managers.sandbox.settings import (
    FEWEST_MEMORY_MIB,
    POOL_UID_BASE,
    POOL_UID_COUNT,
    SandboxSettings,
    StageDirectory,
)
from callsheet.managers.sandbox.walls.pool_users import UserPool


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"manager_id": ""}, "manager_id"),
        ({"manager_id": "../x"}, "manager_id"),
        ({"data_directory": Path("relative")}, "data_directory"),
        ({"stages": (StageDirectory(Path("/does/not/exist")),)}, "stages"),
        ({"cores": frozenset()}, "cores"),
        ({"default_memory_mib": FEWEST_MEMORY_MIB - 1}, "default_memory_mib"),
        ({"concurrent_creates": 0}, "concurrent_creates"),
    ],
)
def test_bad_settings_name_their_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SandboxSettings(**{"manager_id": "m", "data_directory": Path("/data"), **changes})


def test_pool_users_are_outside_of_systemds_and_subordinate_ranges() -> None:
    assert POOL_UID_BASE > 65535
    assert POOL_UID_BASE + POOL_UID_COUNT <= 100_000


def test_pool_users_are_taken_once() -> None:
    pool = UserPool(POOL_UID_COUNT - 1)
    taken = [pool.take() for _ in range(POOL_UID_COUNT)]
    assert sorted(taken) == list(range(POOL_UID_BASE, POOL_UID_BASE + POOL_UID_COUNT))
    with pytest.raises(SandboxCreateError, match="taken"):
        pool.take()
    pool.give_back(taken[5])
    assert pool.take() == taken[5]


def test_an_environment_adds_to_the_python_path() -> None:
    default = {"PATH": "/bin", "PYTHONPATH": "/stage"}
    assert merged_environment(default, {}) == default
    assert merged_environment(default, {"PYTHONPATH": "src", "A": "b"}) == {
        "PATH": "/bin",
        "PYTHONPATH": "src:/stage",
        "A": "b",
    }


def test_a_named_bwrap_is_the_only_one_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    monkeypatch.setenv("CALLSHEET_BWRAP", str(program))
    assert find_bwrap() is None
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_bwrap() == program
    monkeypatch.delenv("CALLSHEET_BWRAP")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_bwrap() == program
