"""What actions that state no demand take of the services they name, as their managers say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionRequest, Demand, ResourceDemand
from callsheet.scheduler.core.words.registration import ServiceDescription


def with_service_demand(state: SchedulerState, request: ActionRequest) -> ActionRequest:
    """Returns the request with its service's demand where it states none; unchanged otherwise."""
    demand = state.service_demands.get(request.service)
    return request if demand is None or request.demand.entries else replace(request, demand=demand)


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
        waiting = [ready for key, ready in state.ready.classes.items() if key.service == service.name]
        for action in [action for ready in waiting for action in ready]:
            if not action.request.demand.entries or action.request.demand == before:
                state.ready.remove(action)
                action.request = replace(action.request, demand=demand)
                state.ready.add(action)
