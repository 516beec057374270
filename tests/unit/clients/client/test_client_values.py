"""The client's values: demands, commands, options, outcomes."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from callsheet.client import (
    Cancelled,
    Client,
    ClientOptions,
    CommandResult,
    Demand,
    Elastic,
    Expired,
    Failed,
    FailureKind,
    Hold,
    InvalidArgumentError,
    NotSucceededError,
    Outcome,
    Reason,
    Resource,
    Succeeded,
    TimeoutKind,
)
from callsheet.client.admin import AdminClient
from callsheet.client.session.channel import CHANNEL_OPTIONS
from callsheet.client.session.session import FIRST_CONNECTION_WAIT_S
from callsheet.client.session.target import from_environment
from callsheet.client.settings import Tls
from callsheet.client.sync import SyncClient


def test_demand_takes_keywords_and_entries() -> None:
    demand = Demand(Resource("gpu.h100", 1, hold=Hold.TRAJECTORY), cpu=Elastic(1, 4, amdahl_fraction=0.9), memory=256)
    assert demand.resources == (
        Resource("gpu.h100", 1, hold=Hold.TRAJECTORY),
        Resource("cpu", 1, 4, 0.9),
        Resource("memory", 256),
    )
    assert demand == Demand(*demand.resources)
    assert hash(demand) == hash(Demand(*demand.resources))
    assert pickle.loads(pickle.dumps(demand)) == demand


def test_elastic_takes_a_measured_table_in_any_order() -> None:
    (resource,) = Demand(cpu=Elastic(1, 8, speed_up={8: 3.0, 2: 1.8})).resources
    assert resource.speed_up == ((2, 1.8), (8, 3.0))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "", "min_units": 1}, "demand.resource"),
        ({"name": "cpu", "min_units": -1}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": 2**63}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": 1, "max_units": 10**400}, "demand.cpu.max_units"),
        ({"name": "cpu", "min_units": math.inf}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": math.nan}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": "1"}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": True}, "demand.cpu.min_units"),
        ({"name": "cpu", "min_units": 0.0005}, "demand.cpu.min_units"),
        ({"name": "memory", "min_units": 0.5}, "demand.memory.min_units"),
        ({"name": "gpu", "min_units": 1, "max_units": 1.5}, "demand.gpu.max_units"),
        ({"name": "cpu", "min_units": 4, "max_units": 2}, "demand.cpu.max_units"),
        ({"name": "cpu", "min_units": 1, "max_units": 2, "amdahl_fraction": 1.5}, "demand.cpu.amdahl_fraction"),
        ({"name": "cpu", "min_units": 1, "amdahl_fraction": 0.5, "speed_up": ((2, 1.5),)}, "demand.cpu.speed_up"),
        ({"name": "cpu", "min_units": 1, "speed_up": ((2, 1.5), (2, 1.6))}, "demand.cpu.speed_up"),
        ({"name": "cpu", "min_units": 1, "speed_up": ((0, 1.5),)}, "demand.cpu.speed_up"),
        ({"name": "cpu", "min_units": 1, "speed_up": ((2, math.nan),)}, "demand.cpu.speed_up"),
    ],
)
def test_a_wrong_resource_names_field_and_rule(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Resource(**arguments)
    assert caught.value.field == field
    assert caught.value.rule


def test_a_resource_is_named_once() -> None:
    with pytest.raises(InvalidArgumentError, match="named once"):
        Demand(Resource("cpu", 1), cpu=2)


def test_outcomes_match_unwrap_and_pickle() -> None:
    value = CommandResult(1, stdout=b"out")
    outcomes: list[Outcome[CommandResult]] = [
        Succeeded(value, attempts=2),
        Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE, partial=value, timeout=TimeoutKind.START_TO_CLOSE),
        Cancelled("redundant"),
        Expired(TimeoutKind.SCHEDULE_TO_START),
    ]
    assert pickle.loads(pickle.dumps(outcomes)) == outcomes
    assert outcomes[0].unwrap() is value
    match outcomes[1]:
        case Failed(kind=FailureKind.TIMEOUT, partial=CommandResult(stdout=output)):
            assert output == b"out"
        case other:
            pytest.fail(str(other))
    for outcome in outcomes[1:]:
        with pytest.raises(NotSucceededError) as caught:
            outcome.unwrap()
        assert caught.value.outcome is outcome


def test_a_first_connection_is_tried_often_enough_to_find_a_scheduler_that_starts() -> None:
    # Waits that double up to five seconds missed one that listened before the timeout.
    longest_s = ClientOptions().connect_timeout_s / 5
    assert longest_s >= FIRST_CONNECTION_WAIT_S
    assert longest_s * 1000 >= int(CHANNEL_OPTIONS["grpc.max_reconnect_backoff_ms"])


@pytest.mark.parametrize("field", ["give_up_after_s", "backoff_initial_s", "close_timeout_s", "outbox_items"])
def test_client_options_name_what_is_wrong(field: str) -> None:
    zero: dict[str, Any] = {field: 0}
    with pytest.raises(InvalidArgumentError) as caught:
        ClientOptions(**zero)
    assert caught.value.field == field


SECRET = "callsheet_0123456789ab_5ec2e7"


@pytest.mark.parametrize("make", [Client, AdminClient, SyncClient], ids=["client", "admin", "sync"])
def test_a_pickle_holds_the_path_of_a_token_and_no_token(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.token"
    file.write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    options = from_environment({"CALLSHEET_TOKEN_FILE": "job.token"})[1]
    # It was read, and is on its way to the scheduler.
    assert options.token == SECRET
    assert options.credentials.metadata() == (("authorization", f"Bearer {SECRET}"),)
    written = pickle.dumps(make("127.0.0.1:1", replace(options, give_up_after_s=7.0)))
    assert SECRET.encode() not in written
    held = pickle.dumps(options)
    assert SECRET.encode() not in held
    monkeypatch.chdir("/")
    again = pickle.loads(held)
    assert (again.token, again.token_file) == (None, str(file))
    assert again.credentials.metadata() == options.credentials.metadata()
    assert isinstance(pickle.loads(written), make)


def test_a_token_alone_is_not_pickled() -> None:
    options = ClientOptions(token=SECRET)
    for each in (options, Client("127.0.0.1:1", options), Client("127.0.0.1:1", options).job("j")):
        with pytest.raises(InvalidArgumentError, match=r"token = '': is not pickled: name its file") as refused:
            pickle.dumps(each)
        assert SECRET not in str(refused.value)
    assert copy.deepcopy({"of": options})["of"].token == SECRET
    plain = ClientOptions(gateway="http://127.0.0.1:1", tls=Tls(ca_file="a.pem"))
    assert pickle.loads(pickle.dumps(plain)) == plain
