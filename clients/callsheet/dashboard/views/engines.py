"""Engines: which weights they have, where rollouts are, and what else keeps them from work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from callsheet.dashboard.blocks import Cell, Notice, Row, Table, View, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.jobs_seen import seen
from callsheet.dashboard.words import NOTHING, duration, enum_name, number
from callsheet.v1 import admin_service_pb2, job_pb2, manager_service_pb2, weights_pb2

_MOST: Final = 200
_REASON: Final = 300


async def look(asked: Asked) -> View:
    """Asks for managers and for the rollouts of jobs."""
    found = await seen(asked)
    status, jobs = found.status, found.jobs
    if status is None:
        return View("Engines", (Notice("A job's token shows the rollouts of the job alone."), _rollouts(jobs)))
    engines = [
        (manager, service)
        for manager in sorted(status.managers, key=lambda each: each.manager_id)
        for service in manager.services
        if service.HasField("weights")
    ]
    more = Cell(f"{len(engines) - _MOST} more engines") if len(engines) > _MOST else None
    busy = ("sequences", "of", "others' sequences", "KV tokens", "exposed")
    columns = ("engine", "service", "state", "version", "weights", *busy, "problem")
    rows = [_engine_row(manager, service) for manager, service in engines[:_MOST]]
    table = Table("Engines", columns, rows, "no engine is registered", more)
    waits = [(plain_line(each.role), count(number(each.waiting), "/stuck")) for each in status.wanted]
    queue = Table("Queue: what there is no room for", ("role or service", "waiting"), waits, "nothing waits")
    return View("Engines", (table, queue, _rollouts(jobs)), f"{number(len(engines))} engines are registered.")


def _engine_row(manager: admin_service_pb2.ManagerStatus, service: manager_service_pb2.HostedService) -> Row:
    weights = service.weights
    proved = weights.standing in {weights_pb2.WEIGHTS_STANDING_INITIAL, weights_pb2.WEIGHTS_STANDING_PROVED}
    standing = enum_name(weights_pb2.WeightsStanding, weights.standing)
    why = f": {plain_line(weights.reason, _REASON)}" if weights.reason else ""
    load = next((each for each in manager.loads if each.service == service.name), admin_service_pb2.ServiceLoad())
    share = min(load.kv_tokens_booked / load.kv_tokens, 1.0) if load.kv_tokens else None
    kv = f"{number(load.kv_tokens_booked)} of {number(load.kv_tokens)}" if load.kv_tokens else NOTHING
    return (
        link("manager", manager=manager.manager_id),
        plain_line(service.name),
        Cell("connected", tone="good") if manager.connected else Cell("away", tone="bad"),
        count(number(weights.version)),
        Cell(f"{standing}{why}", tone="good" if proved else "bad"),
        count(number(load.running), link("manager", manager=manager.manager_id).href),
        count(number(service.slots)),
        count(number(load.others_sequences)),
        Cell(kv, share=share, is_number=True),
        count(duration(load.exposed_s)),
        Cell(plain_line(service.problem, _REASON), tone="bad" if service.problem else ""),
    )


def _rollouts(jobs: Iterable[job_pb2.JobStatus]) -> Table:
    rows = [
        (
            link("job", job=job.spec.job_id),
            plain_line(rollout.service),
            count(number(rollout.version)),
            link("manager", manager=engine.manager_id),
            enum_name(weights_pb2.EngineState, engine.state),
            plain_line(engine.reason, _REASON),
        )
        for job in jobs
        for rollout in job.rollouts
        for engine in rollout.engines
    ]
    more = Cell(f"{len(rows) - _MOST} more") if len(rows) > _MOST else None
    columns = ("job", "service", "to version", "engine", "state", "why")
    return Table("Rollouts of weights", columns, rows[:_MOST], "no job has published weights", more)
