"""The client's enums are the contract's, name by name."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from callsheet.client import (
    BackgroundProcesses,
    Hold,
    Unservable,
    Where,
)
from callsheet.client.codec.fields import MAX_INLINE_BYTES
from callsheet.v1 import action_pb2


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (Hold, action_pb2.Hold, "HOLD_"),
        (Unservable, action_pb2.Unservable, "UNSERVABLE_"),
        (Where, action_pb2.RewardPlace, "REWARD_PLACE_"),
        (BackgroundProcesses, action_pb2.RewardBackground, "REWARD_BACKGROUND_"),
    ],
)
def test_every_value_of_the_contract_has_a_member(ours: type[Enum], theirs: Any, prefix: str) -> None:
    names = {name.removeprefix(prefix) for name in theirs.keys()}  # noqa: SIM118 - an enum wrapper is no mapping
    assert {member.name for member in ours} | {"UNSPECIFIED"} == names
    assert all(member.value == member.name.lower() for member in ours)


def test_the_limit_for_inline_bytes_is_the_contracts() -> None:
    assert MAX_INLINE_BYTES == 65_536
