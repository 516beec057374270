"""`callsheet status` and `callsheet explain`: what the scheduler knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from callsheet.cli.options import DEFAULT_ADDRESS, Address, AsJson
from callsheet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.admin_values import Explanation, SchedulerStatus

T = TypeVar("T")


def status(scheduler: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> None:
    """Show jobs, managers and nodes."""
    from callsheet.cli.plain import to_plain

    found = _ask(scheduler, lambda admin: admin.status())
    if as_json:
        print_json(to_plain(found))
        return
    typer.echo(f"scheduler {scheduler}, epoch {found.epoch}, since {_time(found.started_at)}")
    _print_managers(found)
    _print_nodes(found)
    _print_jobs(found)


def explain(
    action: Annotated[str, typer.Argument(help="Id of the action.")],
    job: Annotated[str, typer.Option(help="Its job; can be left out if no other open job has such an action.")] = "",
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Tell why an action is where it is, and its whole story."""
    from callsheet.cli.plain import to_plain

    found = _ask(scheduler, lambda admin: admin.explain(job, action))
    if as_json:
        print_json(to_plain(found))
    else:
        _print_explanation(found)


def _ask(scheduler: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Asks one question of a scheduler."""
    import anyio
    from callsheet.client.admin import AdminClient

    async def ask() -> T:
        async with AdminClient(scheduler) as admin:
            return await question(admin)

    return anyio.run(ask)


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


def _print_nodes(found: SchedulerStatus) -> None:
    rows = [
        [node.node_id, resource, str(node.free.get(resource, 0)), str(units)]
        for node in found.nodes
        for resource, units in sorted(node.capacity.items())
    ]
    print_table("Nodes", ["node", "resource", "free #", "capacity #"], rows)


def _print_jobs(found: SchedulerStatus) -> None:
    rows = [
        [job.job_id, str(job.open_trajectories), _pairs(job.actions), _pairs(job.failures), str(job.policy_version)]
        for job in found.jobs
    ]
    print_table("Open jobs", ["job", "trajectories #", "actions", "failures", "policy version #"], rows)


def _print_explanation(found: Explanation) -> None:
    kind = found.kind.value if found.kind else "action"
    typer.echo(f"{kind} {found.action_id} of job {found.job_id}: {found.state.value}")
    if found.explanation:
        typer.echo(found.explanation)
    if found.shortages:
        rows = [[s.node_id, s.resource, str(s.needed), str(s.free), str(s.capacity)] for s in found.shortages]
        print_table("Shortages", ["node", "resource", "needed #", "free #", "capacity #"], rows)
    print_table("Story", ["time", "event"], [[_time(event.at), event.event] for event in found.story])


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
