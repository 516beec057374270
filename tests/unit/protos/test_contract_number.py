"""The contract's number: every rpc, field and value of an enum has one, and an addition raises it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    buffer_pb2,
    client_service_pb2,
    common_pb2,
    contract,
    job_pb2,
    manager_service_pb2,
    outcome_pb2,
    payload_service_pb2,
    weights_pb2,
)

FILES = (
    action_pb2,
    admin_service_pb2,
    buffer_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
    manager_service_pb2,
    outcome_pb2,
    payload_service_pb2,
    weights_pb2,
)
PROTOS = Path(contract.__file__).parent
SURFACE = Path(__file__).with_name("contract_surface.txt")


def names_of(file: Any) -> Iterator[str]:
    """All rpcs, fields and values of enums of a file, without the package."""
    for message in file.message_types_by_name.values():
        yield from names_in(message)
    for enum in file.enum_types_by_name.values():
        yield from (value.name for value in enum.values)
    for service in file.services_by_name.values():
        yield from (f"{service.name}.{method.name}" for method in service.methods)


def names_in(message: Any) -> Iterator[str]:
    if not message.GetOptions().map_entry:
        own = message.full_name.removeprefix("callsheet.v1.")
        yield from (f"{own}.{field.name}" for field in message.fields)
        for enum in message.enum_types:
            yield from (f"{own}.{value.name}" for value in enum.values)
        for nested in message.nested_types:
            yield from names_in(nested)


def test_every_addition_has_raised_the_number() -> None:
    assert {each.__name__.rpartition(".")[2] for each in FILES} == {
        f"{each.stem}_pb2" for each in PROTOS.glob("*.proto")
    }
    there = {name for each in FILES for name in names_of(each.DESCRIPTOR)}
    known = {name: int(number) for number, name in map(str.split, SURFACE.read_text().splitlines())}
    more = f"raise CONTRACT to {contract.CONTRACT + 1}, name it in contract.py, and add it to {SURFACE.name} with that"
    assert sorted(there - known.keys()) == [], f"an addition: {more}"
    assert sorted(known.keys() - there) == [], "what is taken away breaks others: raise OLDEST_CONTRACT as well"
    wrong = {name: number for name, number in known.items() if contract.since(f"callsheet.v1.{name}") != number}
    assert wrong == {}, "contract.py has another number"
    assert max(known.values()) == contract.CONTRACT


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (client_service_pb2.OpenJobRequest(job=job_pb2.JobSpec(job_id="j", share=2.0)), None),
        (client_service_pb2.OpenJobRequest(job=job_pb2.JobSpec(max_buffered=1)), "JobSpec.max_buffered"),
        (client_service_pb2.SettleBatchRequest(job_id="j"), "SettleBatchRequest.job_id"),
        (
            client_service_pb2.ClientSessionRequest(
                items=[
                    client_service_pb2.ClientItem(close_job="j"),
                    client_service_pb2.ClientItem(
                        close_trajectory=client_service_pb2.CloseTrajectoryRequest(
                            result=buffer_pb2.TrajectoryResult(reward=1.0)
                        )
                    ),
                ]
            ),
            "CloseTrajectoryRequest.result",
        ),
        # A value of an enum that came later, in a field that was there.
        (admin_service_pb2.ExplainResponse(wait_reason=admin_service_pb2.WAIT_REASON_WEIGHTS), "WAIT_REASON_WEIGHTS"),
    ],
)
def test_what_came_after_a_contract_is_found_however_deep(message: Any, name: str | None) -> None:
    assert contract.unknown_in(message, 1) == (None if name is None else f"callsheet.v1.{name}")
    assert contract.unknown_in(message, contract.CONTRACT) is None


LATER = b"\xfa\x7f\x01x"
"""Field 2047 of any message, with a text."""


def test_a_field_of_a_later_contract_is_found_however_deep() -> None:
    known = action_pb2.ActionSpec(job_id="j", service="s")
    assert contract.unknown_field(known) is None
    top = action_pb2.ActionSpec.FromString(known.SerializeToString() + LATER)
    assert contract.unknown_field(top) == "field 2047 of ActionSpec"
    deep = action_pb2.ActionSpec(job_id="j")
    file = action_pb2.SandboxFile.FromString(action_pb2.SandboxFile(path="f").SerializeToString() + LATER)
    deep.env_reset.files.append(file)
    assert contract.unknown_field(deep) == "field 2047 of SandboxFile"
    assert deep.env_reset.files[0] == file, "it is left as it was"
