"""What managers say of their node and services, when they register and by heartbeats."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.core.words.registration import ServiceState

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, node, service, world_with_manager


def test_heartbeats_say_what_it_takes_to_begin_on_a_service() -> None:
    world = CoreWorld()
    cold = replace(service("judge", [ActionKind.REWARD]), setup_s=20.0)
    manager = world.manager("m", cold, service("work", [ActionKind.TOOL_CALL]))
    hosted = world.state.managers["m"].services
    assert (hosted["judge"].setup_s, hosted["judge"].instances) == (20.0, 0)
    world.handle(events.ManagerHeartbeat("m", manager.stream, (ServiceState("judge", 0.0, 2),)))
    assert (hosted["judge"].setup_s, hosted["judge"].instances) == (0.0, 2)
    manager.heartbeat()
    assert (hosted["judge"].setup_s, hosted["judge"].instances) == (0.0, 2), "nothing said is nothing changed"
    stale = manager.stream
    manager.services = (replace(cold, setup_s=5.0, instances=1), *manager.services[1:])
    manager.join()
    assert (hosted["judge"].setup_s, hosted["judge"].instances) == (5.0, 1), "it changed while no stream was up"
    world.handle(events.ManagerHeartbeat("m", stale, (ServiceState("judge", 9.0, 0),)))
    assert hosted["judge"].setup_s == 5.0


def test_a_manager_that_comes_back_is_what_it_registered_as() -> None:
    world, manager = world_with_manager("m", service("work", slots=4), cores=4)
    world.submit(action_request("a", demand=fixed(cpu=3)), plan=True)
    before, services = manager.node, manager.services
    manager.disconnect()
    manager.node = node("node-m", 2)
    refusal = manager.join().last(commands.RefuseManager).refusal
    assert (refusal.code, refusal.field) == (RefusalCode.FAILED_PRECONDITION, "registration.node")
    assert "4 cores" in refusal.rule
    manager.node, manager.services = before, (service("work", slots=1),)
    refusal = manager.join().last(commands.RefuseManager).refusal
    assert refusal.field == "registration.services"
    assert not world.state.managers["m"].accepting
    manager.services = services
    assert not manager.join().all(commands.RefuseManager)
    assert world.state.managers["m"].accepting


def test_the_state_of_a_service_that_nobody_registered_ends_the_session() -> None:
    world = CoreWorld()
    manager = world.manager("m")
    world.handle(events.ManagerHeartbeat("m", manager.stream, (ServiceState("other", 0.0, 1),)))
    refusal = manager.stream.last(commands.RefuseManager).refusal
    assert refusal.code is RefusalCode.INVALID_ARGUMENT
    assert (refusal.field, refusal.value) == ("heartbeat.services.name", "other")
