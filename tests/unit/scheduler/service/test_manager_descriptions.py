"""What a manager says of itself is bounded: every round looks at it, and every status shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec.manager_wire import decode_item, decode_registration
from callsheet.v1 import action_pb2, manager_service_pb2

from tests.support.guarded_service import registration
from tests.support.peers import Peer

MANY = 20_000
REWARD = action_pb2.ACTION_KIND_REWARD
Registration = manager_service_pb2.Registration


def many_names(units: int = 1) -> dict[str, int]:
    return {f"r{number}": units for number in range(MANY)}


def service(**said: Any) -> manager_service_pb2.HostedService:
    return manager_service_pb2.HostedService(name="s", kinds=[REWARD], **said)


def running(**said: Any) -> manager_service_pb2.RunningAttempt:
    attempt = manager_service_pb2.RunningAttempt(attempt=1, **said)
    attempt.key.job_id = attempt.key.action_id = "a"
    return attempt


def said_more(change: Callable[[Any], object]) -> manager_service_pb2.Registration:
    message = manager_service_pb2.Registration()
    message.CopyFrom(registration("m").items[0].registration)
    change(message)
    return message


TOO_MUCH: dict[str, tuple[Callable[[Any], object], str]] = {
    "services": (
        lambda said: said.services.extend(service() for _ in range(MANY)),
        "registration.services",
    ),
    "bytes": (
        lambda said: said.services.extend(service(reserved={f"r{n}": 1 for n in range(90_000 + i)}) for i in range(2)),
        "registration",
    ),
    "kinds": (lambda said: said.services[0].kinds.extend([REWARD] * MANY), "registration.services[0].kinds"),
    "reserved": (
        lambda said: said.services[0].reserved.update(many_names()),
        "registration.services[0].reserved",
    ),
    "a reserved name": (
        lambda said: said.services[0].reserved.update({"\x1b[2J": 1}),
        "registration.services[0].reserved",
    ),
    "shared": (lambda said: said.services[0].shared.update(many_names()), "registration.services[0].shared"),
    "set-ups": (
        lambda said: said.services[0].kept_set_ups.update(many_names()),
        "registration.services[0].kept_set_ups",
    ),
    "a version": (
        lambda said: setattr(said.services[0], "policy_version", -1),
        "registration.services[0].policy_version",
    ),
    "capacity": (lambda said: said.node.capacity.update(many_names()), "registration.node.capacity"),
    "quotas": (
        lambda said: [said.node.quotas[name].SetInParent() for name in many_names()],
        "registration.node.quotas",
    ),
    "cores": (lambda said: said.node.numa_nodes[0].cores.extend(range(2, MANY)), "registration.node.numa_nodes"),
    "NUMA nodes": (
        lambda said: said.node.numa_nodes.extend(manager_service_pb2.NumaNode() for _ in range(MANY)),
        "registration.node.numa_nodes",
    ),
    "capabilities": (
        lambda said: said.capabilities.update(dict.fromkeys(many_names(), "yes")),
        "registration.capabilities",
    ),
    "the name of a capability": (lambda said: said.capabilities.update({"\n": "x"}), "registration.capabilities"),
    "a capability": (lambda said: said.capabilities.update({"x": "y" * 14_000_000}), "registration.capabilities[x]"),
    "what runs": (lambda said: said.running.append(running(resources=many_names())), "registration.running.resources"),
    "its cores": (lambda said: said.running.append(running(cores=range(MANY))), "registration.running.cores"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_manager_that_says_too_much_is_refused(what: str) -> None:
    change, field = TOO_MUCH[what]
    with pytest.raises(RefusedError) as caught:
        decode_registration(Peer(), said_more(change))
    assert (caught.value.code, caught.value.field) == (RefusalCode.INVALID_ARGUMENT, field)


def test_a_large_machine_is_taken() -> None:
    def large(said: Registration) -> None:
        said.node.numa_nodes[0].cores.extend(range(2, 4096))
        said.services.extend(
            manager_service_pb2.HostedService(
                name=f"sandbox:registry.example/team/image-{number}:2026-11-23", kinds=[REWARD], shared={"cpu": 4096}
            )
            for number in range(1000)
        )

    decode_registration(Peer(), said_more(large))


@pytest.mark.parametrize("what", ["services", "set-ups"])
def test_a_heartbeat_that_says_too_much_is_refused(what: str) -> None:
    told = manager_service_pb2.Heartbeat()
    if what == "services":
        told.services.extend(manager_service_pb2.ServiceState(name=name) for name in many_names())
    else:
        told.services.add(name="n").kept_set_ups.update(many_names())
    with pytest.raises(RefusedError) as caught:
        decode_item("m", Peer(), manager_service_pb2.ManagerItem(heartbeat=told))
    assert caught.value.code is RefusalCode.INVALID_ARGUMENT
