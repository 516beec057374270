"""The scheduler's metrics: what was tallied, and the core's state as it is at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.planner.answers.wanted import WantedUnits
from callsheet.scheduler.web.tally import BOUNDS_S, Histogram, Tally
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

MAX_NAMED: Final = 500
"""The most managers, and the most nodes, that have series of their own: the first by name."""

_OPEN_STATES: Final = ("queued", "dispatched", "running")


def collect(state: SchedulerState, tally: Tally, wanted: Iterable[WantedUnits], now: float) -> list[Metric]:
    """Returns all metrics; takes a millisecond or two. Must be called where the core is."""
    managers = [state.managers[name] for name in sorted(state.managers)[:MAX_NAMED]]
    return [
        *_of_actions(tally),
        _of_costs(state, now),
        *_of_work(state),
        *_of_managers(state, managers),
        *_of_engines(managers, now),
        *_of_nodes(state),
        *_of_roles(wanted),
    ]


def render(metrics: Sequence[Metric]) -> bytes:
    """Returns metrics in the text format of Prometheus. Can be called in any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_actions(tally: Tally) -> Iterator[Metric]:
    ends = CounterMetricFamily(
        "callsheet_actions",
        "Actions that got their outcome, by kind, outcome and kind of failure.",
        labels=["kind", "outcome", "failure"],
    )
    for (kind, outcome, failure), count in sorted(tally.ends.items()):
        ends.add_metric([kind.name.lower(), outcome, failure], count)
    yield ends
    for step, meaning in (
        ("queue", "Time that actions waited to be dispatched, over all attempts."),
        ("waiting", "Time that actions waited after their dispatch, for whatever it was."),
        ("execution", "Time that managers executed the last attempt."),
        ("overhead", "All other time from submit to end: transport, dispatch and journal."),
    ):
        family = HistogramMetricFamily(f"callsheet_action_{step}_seconds", meaning, labels=["kind"])
        for kind, times in tally.times.items():
            histogram: Histogram = getattr(times, step)
            family.add_metric([kind.name.lower()], _buckets(histogram), histogram.total)
        yield family
    waited = CounterMetricFamily(
        "callsheet_action_waited_seconds", "Time that actions waited after their dispatch.", labels=["kind", "cause"]
    )
    for kind, times in tally.times.items():
        for cause, seconds in sorted(times.waited_s.items()):
            waited.add_metric([kind.name.lower(), cause], seconds)
    yield waited
    refusals = CounterMetricFamily("callsheet_refusals", "Refused requests, by gRPC code.", labels=["code"])
    for code, count in sorted(tally.refusals.items()):
        refusals.add_metric([code.name], count)
    yield refusals
    messages = CounterMetricFamily(
        "callsheet_messages", "gRPC messages that the scheduler read and wrote.", labels=["rpc", "direction"]
    )
    for labels, count in sorted(tally.messages.items()):
        messages.add_metric(labels, count)
    yield messages
    spans = CounterMetricFamily(
        "callsheet_span_actions", "Actions whose spans went to a collector, or were lost.", labels=["result"]
    )
    for result, count in sorted(tally.spans.items()):
        spans.add_metric([result], count)
    yield spans


def _of_costs(state: SchedulerState, now: float) -> Metric:
    told = "What ended attempts held or used, by their kind, and sandboxes between their commands (kind sandbox)."
    family = CounterMetricFamily("callsheet_cost", told, labels=["kind", "part", "resource"])
    spent = {kind.name.lower(): cost for kind, cost in state.spent.items()} | {"sandbox": state.resting.until(now)}
    for kind, cost in spent.items():
        for part, amounts in (("held", cost.held), ("used", cost.used)):
            for resource, amount in sorted(amounts.items()):
                family.add_metric([kind, part, resource], amount)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, BOUNDS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def _of_work(state: SchedulerState) -> Iterator[Metric]:
    counts: Counter[str] = Counter()
    for job in state.jobs.values():
        counts.update({each.value: count for each, count in job.state_counts.items()})
    family = GaugeMetricFamily("callsheet_open_actions", "Actions without an outcome, by state.", labels=["state"])
    for name in _OPEN_STATES:
        family.add_metric([name], counts[name])
    yield family
    waiting = sum(map(len, state.waiting_trajectories.values()))
    yield GaugeMetricFamily("callsheet_open_jobs", "Open jobs.", len(state.jobs))
    yield GaugeMetricFamily("callsheet_open_trajectories", "Open trajectories.", state.open_trajectories)
    yield GaugeMetricFamily("callsheet_waiting_trajectories", "Those that wait to be let begin.", waiting)
    yield GaugeMetricFamily("callsheet_scheduler_epoch", "Grows with each start of the scheduler.", state.epoch)


def _of_managers(state: SchedulerState, managers: Sequence[Manager]) -> Iterator[Metric]:
    states: Counter[str] = Counter(map(_state_of, state.managers.values()))
    states["lost"] = len(state.lost_managers)
    family = GaugeMetricFamily("callsheet_managers", "Registered managers, by state.", labels=["state"])
    for name in ("connected", "draining", "away", "lost"):
        family.add_metric([name], states[name])
    yield family
    yield _gauge("callsheet_attempts", "Attempts that a manager runs.", managers, lambda each: len(each.attempts))
    yield _gauge("callsheet_sandboxes", "Sandboxes that a manager holds.", managers, lambda each: len(each.sandboxes))
    what = "Attempts that wait at a manager for memory."
    yield _gauge("callsheet_attempts_waiting_for_memory", what, managers, lambda each: each.waiting_for_memory)
    for part, meaning in (("demand", "may have"), ("booked", "are booked with"), ("held", "hold between actions")):
        family = GaugeMetricFamily(
            f"callsheet_sandbox_{part}_mib", f"Memory that sandboxes {meaning}.", labels=["manager"]
        )
        for manager in managers:
            family.add_metric([manager.manager_id], manager.sandbox_memory_mib[part])
        yield family


def _state_of(manager: Manager) -> str:
    if manager.session is None:
        return "away"
    return "connected" if manager.leaves_by is None and not manager.draining else "draining"


def _gauge(name: str, meaning: str, managers: Iterable[Manager], value: Callable[[Manager], float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=["manager"])
    for manager in managers:
        family.add_metric([manager.manager_id], value(manager))
    return family


def _of_engines(managers: Sequence[Manager], now: float) -> Iterator[Metric]:
    """Services whose weights can change, which are engines."""
    engines = [
        (manager, service)
        for manager in managers
        for service in manager.services.values()
        if service.description.weights is not None
    ]
    told: tuple[tuple[str, str, Callable[[Manager, Service], float]], ...] = (
        ("sequences", "Sequences that an engine was given.", lambda _, each: each.busy),
        ("others_sequences", "Sequences on it that came another way.", lambda _, each: each.others_sequences),
        ("slots", "The most sequences in its batch.", lambda _, each: each.description.slots),
        ("kv_tokens", "Tokens that its KV cache holds; 0 if not known.", lambda _, each: each.description.kv_tokens),
        ("kv_tokens_booked", "Tokens that its sequences are expected to hold.", lambda _, each: each.kv_booked),
        ("policy_version", "Version of the weights that it has.", lambda _, each: each.weights.told.version),
        ("serving", "1 if it is given work, else 0.", _serves),
        ("failed_updates", "Updates of its weights that failed in a row.", lambda _, each: each.weights.failures),
    )
    for name, meaning, value in told:
        family = GaugeMetricFamily(f"callsheet_engine_{name}", meaning, labels=["manager", "service"])
        for manager, service in engines:
            family.add_metric([manager.manager_id, service.description.name], value(manager, service))
        yield family
    exposed = CounterMetricFamily(
        "callsheet_engine_exposed_seconds",
        "Time in which it was given nothing for its weights' sake.",
        labels=["manager", "service"],
    )
    for manager, service in engines:
        exposed.add_metric([manager.manager_id, service.description.name], service.weights.exposed_until(now))
    yield exposed


def _serves(manager: Manager, service: Service) -> float:
    return float(manager.accepting and not service.weights.gated and not service.no_room)


def _of_nodes(state: SchedulerState) -> Iterator[Metric]:
    nodes = [state.nodes[name] for name in sorted(state.nodes)[:MAX_NAMED]]
    parts = (
        ("capacity", "Units of a node."),
        ("free", "Units that can be granted now."),
        ("granted", "Units that attempts and trajectories hold."),
        ("reserved", "Units that services keep, and that managers share among their attempts."),
    )
    for part, meaning in parts:
        family = GaugeMetricFamily(f"callsheet_node_{part}", meaning, labels=["node", "resource"])
        for node in nodes:
            units: dict[str, int] = getattr(node, part)
            for resource in sorted(node.capacity):
                family.add_metric([node.node_id, resource], units.get(resource, 0))
        yield family


def _of_roles(roles: Iterable[WantedUnits]) -> Iterator[Metric]:
    """Yields the units wanted of managers, by role: a fleet grows and shrinks by them."""
    waiting = GaugeMetricFamily("callsheet_role_waiting", "Actions and trajectories without room.", labels=["role"])
    parts = (
        ("held", "Units that attempts run with and sandboxes keep."),
        ("waiting_units", "The fewest units for what waits."),
        ("useful_units", "Units beyond those that would shorten what waits and runs."),
    )
    families = [GaugeMetricFamily(f"callsheet_role_{part}", told, labels=["role", "resource"]) for part, told in parts]
    for wanted in roles:
        waiting.add_metric([wanted.role], wanted.waiting)
        for (part, _), family in zip(parts, families, strict=True):
            units: Counter[str] = getattr(wanted, part)
            for resource in sorted(units):
                family.add_metric([wanted.role, resource], units[resource])
    yield from (waiting, *families)
