"""Learns from managers the demand of actions that name a service and state no demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from callsheet.scheduler.core.state.chores import Part
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import Demand, ResourceDemand
from callsheet.scheduler.core.words.registration import ServiceDescription


def learn_demands(state: SchedulerState, services: Iterable[ServiceDescription]) -> None:
    """Takes over the demands that managers tell of services; actions that wait for one take it from now on."""
    for service in services:
        entries = tuple(ResourceDemand(name, units, units) for name, units in sorted(service.demand.items()))
        before = state.service_demands.pop(service.name, None)
        if not entries:
            continue
        demand = state.service_demands[service.name] = Demand(entries)
        if demand == before:
            continue
        state.chores.add(("demand", service.name), _take_demand(state, service.name))


def _take_demand(state: SchedulerState, service: str) -> Iterator[Part]:
    """Has the actions that wait for a service take its newest demand; those with one of their own at least so much."""
    waiting = [action for key, ready in state.ready.classes.items() if key.service == service for action in ready]

    def take(action: Action, _: float) -> None:
        if action.ready_ticket:
            state.ready.remove(action)
            state.ready.add(action)

    yield from (partial(take, each) for each in waiting)
