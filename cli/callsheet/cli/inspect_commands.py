"""`callsheet status`, `explain` and `what-if`: what the scheduler knows and expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import CommandError, failures_of, pairs, print_table, say
from callsheet.cli.questions import ask, show
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.admin_predictions import ExpectedRun, WhatIf
    from callsheet.client.admin_values import (
        EngineWeights,
        Explanation,
        Holder,
        ManagerStatus,
        OpenActions,
        SchedulerStatus,
        ServiceStatus,
    )

_JOB_AND_ACTION = 2


def status(scheduler: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> None:
    """Show jobs, managers and nodes."""

    def for_people(found: SchedulerStatus) -> None:
        say(f"scheduler {scheduler}, epoch {found.epoch}, since {_time(found.started_at)}")
        _print_managers(found)
        _print_engines(found)
        _print_nodes(found)
        _print_wanted(found)
        _print_jobs(found)

    show(ask(scheduler, lambda admin: admin.status()), as_json, for_people)


def explain(
    action: Annotated[
        list[str],
        typer.Argument(help="An action as ACTION, JOB/ACTION or JOB ACTION; or a JOB, for all its open actions."),
    ],
    job: Annotated[str, typer.Option(help="Its job; not needed if only one job has an action of this id.")] = "",
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show why an action, or each open one of a job, waits.

    For one action it shows the whole story.
    """
    words = [job, *action] if job else action
    if len(words) > _JOB_AND_ACTION:
        raise CommandError("action: takes one id, or a job and an action", usage=True)
    show(ask(scheduler, lambda admin: _explained(admin, words)), as_json, _print_found)


def actions(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
    at_most: Annotated[int, typer.Option(help="The most actions to list, the oldest first.", min=1, max=1000)] = 100,
) -> None:
    """List the open actions of a job, the oldest first.

    Each has its state, and the reason of its wait.
    """

    def for_people(found: OpenActions) -> None:
        rows = [
            [each.action_id, each.kind.value if each.kind else "", each.state.value, _since(each), each.explanation]
            for each in found.actions
        ]
        print_table(f"{found.open} open actions of {job}", ["action", "kind", "state", "submitted", "why"], rows)

    show(ask(scheduler, lambda admin: admin.actions(job, at_most=at_most)), as_json, for_people)


def what_if(
    pool: Annotated[str, typer.Option(help="Name of a pool, or the id of one of its nodes.")],
    nodes: Annotated[int, typer.Option(help="Nodes to add to it.", min=1)],
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show the gain of more nodes in a pool.

    It compares the completion times of all actions that wait or run now.
    """
    show(ask(scheduler, lambda admin: admin.what_if(pool, nodes)), as_json, _print_what_if)


async def _explained(admin: AdminClient, words: Sequence[str]) -> Explanation | OpenActions:
    """Returns the explanation of the action that words name, or of the job if they name no action.

    A word may be the id of an action of any job, or a job's id, a slash and the action's id.
    """
    from callsheet.client.errors import NotFoundError

    *job, action = words
    own = [action.removeprefix(f"{job[0]}/"), action] if job else [action]
    named = [(job[0] if job else "", each) for each in dict.fromkeys(own)]
    if not job:
        named += [(action[:at], action[at + 1 :]) for at in range(1, len(action) - 1) if action[at] == "/"]
    unknown: NotFoundError | None = None
    for key in named:
        try:
            return await admin.explain(*key)
        except NotFoundError as error:
            unknown = unknown or error
    try:
        return await admin.actions(action)
    except NotFoundError:
        raise unknown or NotFoundError from None


def _print_found(found: Explanation | OpenActions) -> None:
    from callsheet.client.admin_values import Explanation

    if isinstance(found, Explanation):
        _print_explanation(found)
        return
    shown = len(found.actions)
    say(f"{found.open} open actions" + ("" if shown == found.open else f"; of the oldest {shown}:"))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for each in found.actions:
        kind = each.kind.value if each.kind else "action"
        alike.setdefault((kind, each.state.value, each.explanation), []).append(each.action_id)
    for (kind, state, why), ids in alike.items():
        say(f"{len(ids)} {kind} {state}, the oldest {ids[0]}: {why}")


def _since(found: Explanation) -> str:
    return _time(found.story[0].at) if found.story else ""


def _print_managers(found: SchedulerStatus) -> None:
    rows = [
        [
            manager.manager_id,
            manager.node_id,
            _state_of(manager),
            ", ".join(service.name for service in manager.services),
            attempts_of(manager),
            sandboxes_of(manager),
            # The rest is long and for programs: --json has it.
            manager.capabilities.get("isolation") or manager.capabilities.get("engine", ""),
        ]
        for manager in found.managers
    ]
    rows += [
        [lost.manager_id, lost.node_id, f"lost {_time(lost.lost_at)}", "", str(lost.attempts), str(lost.sandboxes), ""]
        for lost in found.lost
    ]
    columns = ["manager", "node", "state", "services", "attempts #", "sandboxes #", "runs in"]
    print_table("Managers", columns, rows)


def attempts_of(manager: ManagerStatus) -> str:
    """The attempts of a manager, for a cell of a table: how many, and how many of them wait for memory there."""
    waiting = manager.waiting_for_memory
    return f"{manager.attempts} ({waiting} for memory)" if waiting else str(manager.attempts)


def sandboxes_of(manager: ManagerStatus) -> str:
    """The sandboxes of a manager, for a cell of a table: how many, and their memory."""
    memory = "({held} held, {booked} booked of {demand} MiB)" if manager.sandbox_memory_mib.get("demand") else ""
    return f"{manager.sandboxes} {memory.format(**manager.sandbox_memory_mib)}".rstrip()


def _state_of(manager: ManagerStatus) -> str:
    if manager.draining or not manager.leaving:
        return "draining" if manager.draining else "connected" if manager.connected else "away"
    return "leaving" if manager.leaves_by is None else f"leaving by {_time(manager.leaves_by)}"


def _print_wanted(found: SchedulerStatus) -> None:
    rows = [
        [
            each.role,
            str(each.managers),
            str(each.waiting),
            pairs(each.held),
            pairs(each.waiting_units),
            pairs(each.useful_units),
        ]
        for each in found.wanted
    ]
    columns = ["role", "managers #", "waiting #", "held", "wanted for what waits", "useful beyond"]
    print_table("Wanted by role", columns, rows)


def _print_engines(found: SchedulerStatus) -> None:
    if rows := engine_rows(found):
        print_table("Engines", ["manager", "service", "weights", "version #", "rollout", "takes work"], rows)
    for line in troubles(found):
        say(line)


def troubles(found: SchedulerStatus) -> list[str]:
    """Returns why nothing can begin on a service, a line for each manager that reports a reason."""
    told = [
        (manager.manager_id, service.name, service.problem or (service.weights.reason if service.weights else ""))
        for manager in found.managers
        for service in manager.services
    ]
    return [": ".join(each) for each in told if each[2]]


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
    """Returns a sentence about a holder: its units, how long it has held them, and if its client still lives."""
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
