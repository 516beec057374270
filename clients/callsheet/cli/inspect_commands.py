"""`callsheet status`, `explain` and `what-if`: what the scheduler knows and expects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import failures_of, pairs, print_table, say
from callsheet.cli.questions import ask, show
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client.admin_predictions import ExpectedRun, WhatIf
    from callsheet.client.admin_values import (
        EngineWeights,
        Explanation,
        Holder,
        ManagerStatus,
        SchedulerStatus,
        ServiceStatus,
    )


def status(scheduler: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> None:
    """Show jobs, managers and nodes."""

    def for_people(found: SchedulerStatus) -> None:
        say(f"scheduler {scheduler}, epoch {found.epoch}, since {_time(found.started_at)}")
        _print_managers(found)
        _print_engines(found)
        _print_nodes(found)
        _print_jobs(found)

    show(ask(scheduler, lambda admin: admin.status()), as_json, for_people)


def explain(
    action: Annotated[str, typer.Argument(help="Id of the action.")],
    job: Annotated[str, typer.Option(help="Its job; can be left out if no other job has such an action.")] = "",
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Tell why an action is where it is, and its whole story."""
    show(ask(scheduler, lambda admin: admin.explain(job, action)), as_json, _print_explanation)


def what_if(
    pool: Annotated[str, typer.Option(help="Name of a pool, or the id of one of its nodes.")],
    nodes: Annotated[int, typer.Option(help="Nodes to add to it.", min=1)],
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Tell what more nodes of a pool would gain.

    It compares the completion times of all that waits and runs now.
    """
    show(ask(scheduler, lambda admin: admin.what_if(pool, nodes)), as_json, _print_what_if)


def _print_managers(found: SchedulerStatus) -> None:
    rows = [
        [
            manager.manager_id,
            manager.node_id,
            "draining" if manager.draining else "connected" if manager.connected else "away",
            ", ".join(service.name for service in manager.services),
            str(manager.attempts),
            str(manager.sandboxes),
            # The rest is long and for programs: --json has it.
            manager.capabilities.get("isolation") or manager.capabilities.get("engine", ""),
        ]
        for manager in found.managers
    ]
    columns = ["manager", "node", "state", "services", "attempts #", "sandboxes #", "runs in"]
    print_table("Managers", columns, rows)


def _print_engines(found: SchedulerStatus) -> None:
    if rows := engine_rows(found):
        print_table("Engines", ["manager", "service", "weights", "version #", "rollout", "takes work"], rows)
    for manager, service, weights in _engines(found):
        if trouble := service.problem or weights.reason:
            say(f"{manager.manager_id}: {trouble}")


def engine_rows(found: SchedulerStatus) -> list[list[str]]:
    """The table of engines: each with its weights, and where it stands in the rollout of its service."""
    rollouts = {
        (rollout.service, engine.manager_id): f"{engine.state.value} (version {rollout.version})"
        for job in found.jobs
        for rollout in job.rollouts
        for engine in rollout.engines
    }
    return [
        [
            manager.manager_id,
            service.name,
            weights.standing.value,
            str(weights.version),
            rollouts.get((service.name, manager.manager_id), "-"),
            "yes" if weights.may_serve and not service.problem else "no",
        ]
        for manager, service, weights in _engines(found)
    ]


def _engines(found: SchedulerStatus) -> Iterator[tuple[ManagerStatus, ServiceStatus, EngineWeights]]:
    for manager in found.managers:
        for service in manager.services:
            if service.weights is not None:
                yield manager, service, service.weights


def _print_nodes(found: SchedulerStatus) -> None:
    rows = [
        [
            node.node_id,
            resource,
            str(node.free.get(resource, 0)),
            str(found.shared_units(node.node_id, resource)),
            str(units),
        ]
        for node in found.nodes
        for resource, units in sorted(node.capacity.items())
    ]
    print_table("Nodes", ["node", "resource", "free #", "shared #", "capacity #"], rows)


def _print_jobs(found: SchedulerStatus) -> None:
    rows = [
        [job.job_id, str(job.open_trajectories), pairs(job.actions), failures_of(job), str(job.policy_version)]
        for job in found.jobs
    ]
    print_table("Open jobs", ["job", "trajectories #", "actions", "failures", "policy version #"], rows)


def _print_explanation(found: Explanation) -> None:
    kind = found.kind.value if found.kind else "action"
    say(f"{kind} {found.action_id} of job {found.job_id}: {found.state.value}")
    if found.explanation:
        say(found.explanation)
    if found.expected is not None:
        say(_expectation(found.expected))
    if found.shortages:
        rows = [[s.node_id, s.resource, str(s.needed), str(s.free), str(s.capacity)] for s in found.shortages]
        print_table("Shortages", ["node", "resource", "needed #", "free #", "capacity #"], rows)
    for holder in found.holders:
        say(holding(holder))
    print_table("Story", ["time", "event"], [[_time(event.at), event.event] for event in found.story])


def holding(holder: Holder) -> str:
    """Who holds what, for how long, and whether its client still lives, as a sentence."""
    units = ", ".join(
        "1 slot" if (resource, count) == ("slots", 1.0) else f"{count:g} {resource}"
        for resource, count in sorted(holder.units.items())
    )
    held = f"for {holder.held_s:.3g} s"
    if not holder.job_id:
        return f"{units or 'it'} held by another job on {holder.node_id} {held}"
    who = f"action {holder.action_id}" if holder.action_id else f"trajectory {holder.trajectory_id}"
    client = "its client is connected" if holder.sessions else "its client is away"
    expiry = "" if holder.expires_in_s is None else f", its job expires in {holder.expires_in_s:.3g} s"
    return f"{units or 'it'} held by {who} of job {holder.job_id} on {holder.node_id} {held}; {client}{expiry}"


def _expectation(expected: ExpectedRun) -> str:
    return (
        f"expected at its fewest units: {expected.mean_s:.3g} s (8 in 10 between {expected.low_s:.3g} and "
        f"{expected.high_s:.3g} s), {expected.use:.2g} cores, {expected.peak_memory_mb:.0f} MB at its peak; "
        f"from {expected.observations:.3g} like runs and their kin"
    )


def _print_what_if(found: WhatIf) -> None:
    say(found.summary)
    after = {each.name: each for each in found.after.classes}
    rows = [
        [
            before.name,
            str(before.waiting),
            f"{before.waited_s:.3g}",
            f"{before.mean_wait_s:.3g}",
            f"{after[before.name].mean_wait_s:.3g}",
            f"{before.mean_end_s:.3g}",
            f"{after[before.name].mean_end_s:.3g}",
        ]
        for before in found.before.classes
        if before.name in after
    ]
    if rows:
        columns = [
            "waiting class",
            "actions #",
            "waited, s #",
            "wait now, s #",
            "wait then, s #",
            "end now, s #",
            "end then, s #",
        ]
        print_table(f"{found.pool}, {found.nodes} nodes", columns, rows)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
