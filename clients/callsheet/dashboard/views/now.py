"""The present state: jobs, waiting actions and their reasons, held units of each node, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from callsheet.dashboard.blocks import (
    Cell,
    Chart,
    Facts,
    FormField,
    Notice,
    PageSection,
    Table,
    View,
    WebForm,
    count,
    link,
)
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.jobs_seen import OldestActions, Seen, oldest_actions, open_actions, seen
from callsheet.dashboard.views.past import resource_name, sum_of
from callsheet.dashboard.views.stuck import client_sentence
from callsheet.dashboard.words import (
    NOTHING,
    clock_time,
    duration,
    kind_name,
    number,
    seconds_of,
    state_name,
    wait_name,
)
from callsheet.v1 import admin_service_pb2, common_pb2, job_pb2

_MOST_JOBS: Final = 50
_MOST_NODES: Final = 100
_MOST_LOST: Final = 20
_ENDED: Final = ("succeeded", "failed", "cancelled", "expired")

NO_JOB: Final = (
    "No job is open. On a terminal of this machine, callsheet demo runs rollouts that need no GPU; "
    "callsheet submit runs single commands; in Python, Client(...).job(...) opens a job."
)
NO_MANAGER: Final = (
    "No manager has registered, so nothing can run. callsheet up starts managers with the scheduler; "
    "callsheet manager sandbox --scheduler HOST:PORT adds one, and callsheet logs tells why one does not start."
)


async def look(asked: Asked) -> View:
    """Asks for jobs, managers and nodes, and for the oldest open actions."""
    found = await seen(asked)
    waiting = await oldest_actions(asked, found.jobs)
    return now_view(found, waiting, asked.now, is_over=asked.source.last_alive is not None)


def now_view(found: Seen, waiting: OldestActions, now: float, *, is_over: bool = False) -> View:
    """Returns the page; of a run that is over it does not say how to begin."""
    blocks: list[Any] = []
    status = found.status
    if status is not None and not status.managers and not is_over:
        blocks.append(Notice(NO_MANAGER, "bad"))
    if not found.jobs:
        blocks.append(Notice("No job was open." if is_over else NO_JOB))
    states: Counter[str] = Counter()
    for job in found.jobs:
        states.update(job.actions)
    if status is not None:
        blocks.append(_scheduler(status, now))
    open_now = {"waiting": float(states["queued"]), "running": float(states["running"] + states["dispatched"])}
    blocks.append(Chart("Open actions while this page is open", open_now, now))
    if found.jobs:
        blocks.append(jobs_table(found.jobs))
        blocks.append(waits_table(waiting))
        blocks.append(failures_table(found.jobs))
    if status is not None and status.ends:
        blocks.append(_ends_table(status.ends))
    if status is not None:
        blocks.append(
            PageSection(
                "Nodes and managers",
                (
                    nodes_table(status.nodes),
                    used_table("node", status.managers, lambda manager, _: manager.node_id),
                    used_table("service", status.managers, lambda _, load: load.service),
                    managers_table(status.managers),
                    _lost(status),
                ),
            )
        )
    blocks.append(Notice("Jobs that are over:", links=(Cell("Closed jobs", "/closed"),)))
    blocks.append(WebForm("/job", "Look", (FormField("job", "A job by its id, also a closed one", ""),)))
    waits = number(states["queued"])
    return View("Now", blocks, f"{number(len(found.jobs))} jobs are open; {waits} actions wait.")


def _scheduler(status: admin_service_pb2.GetStatusResponse, now: float) -> Facts:
    started = seconds_of(status.started)
    return Facts(
        (
            ("scheduler up for", duration(now - started)),
            ("started (UTC)", clock_time(started)),
            ("starts so far", number(status.epoch)),
            ("managers", Cell(number(len(status.managers)), "/engines")),
            ("lost managers", Cell(number(len(status.lost)), tone="bad" if status.lost else "")),
        )
    )


def jobs_table(jobs: Sequence[job_pb2.JobStatus]) -> Table:
    """Returns the jobs with the most open actions first."""
    rows = []
    for job in sorted(jobs, key=open_actions, reverse=True)[:_MOST_JOBS]:
        name, actions = job.spec.job_id, job.actions
        live, all_of = link("trajectories", job=name).href, link("job", job=name).href
        rows.append(
            (
                link("job", job=name),
                count(number(job.open_trajectories), live),
                count(number(job.waiting_trajectories), live),
                count(number(actions.get("queued", 0)), link("stuck", job=name).href),
                count(number(actions.get("dispatched", 0) + actions.get("running", 0)), link("stuck", job=name).href),
                count(number(sum(actions.get(state, 0) for state in _ENDED)), all_of),
                count(number(actions.get("failed", 0)), all_of, "bad" if actions.get("failed") else ""),
                count(number(job.policy_version), "/engines"),
                client_sentence(job).removeprefix("Its client: ").removesuffix("."),
            )
        )
    columns = (
        "job",
        "open trajectories",
        "of these not begun",
        "actions waiting",
        "running",
        "ended",
        "failed",
        "version",
        "client",
    )
    more = Cell(f"{len(jobs) - _MOST_JOBS} more jobs") if len(jobs) > _MOST_JOBS else None
    return Table("Jobs", columns, rows, more=more)


def waits_table(waiting: OldestActions) -> Table:
    """Returns what waits, and why, by kind."""
    queued = [each for each in waiting.actions if each.state == admin_service_pb2.ACTION_STATE_QUEUED]
    counts = Counter((each.kind, each.wait_reason) for each in queued)
    rows = [
        (kind_name(kind), wait_name(reason) or "not told", count(number(times), "/stuck"))
        for (kind, reason), times in counts.most_common()
    ]
    beyond = f", the oldest {number(len(queued))} of those that wait" if waiting.left_out else ""
    return Table(f"What waits and why{beyond}", ("kind", "why", "actions"), rows, "nothing waits")


def failures_table(jobs: Iterable[job_pb2.JobStatus]) -> Table:
    """Returns failures by kind, for each job."""
    rows = [
        (link("job", job=job.spec.job_id), plain_line(kind.lower()), _failed(job.spec.job_id, times))
        for job in jobs
        for kind, times in sorted(job.failures.items(), key=lambda each: -each[1])
    ]
    return Table("Failed actions by kind of failure", ("job", "kind", "actions"), rows[:_MOST_JOBS], "none failed")


def _ends_table(ends: Iterable[admin_service_pb2.EndCount]) -> Table:
    failed = [each for each in ends if each.state != admin_service_pb2.ACTION_STATE_SUCCEEDED]
    rows = [
        (kind_name(each.kind), state_name(each.state), plain_line(each.failure), count(number(each.count), tone="bad"))
        for each in sorted(failed, key=lambda each: -each.count)
    ]
    caption = "Actions that did not succeed since the scheduler's start, by phase"
    return Table(caption, ("phase", "end", "kind of failure", "actions"), rows, "all succeeded")


def used_table(
    what: str,
    managers: Iterable[admin_service_pb2.ManagerStatus],
    name_of: Callable[[admin_service_pb2.ManagerStatus, admin_service_pb2.ServiceLoad], str],
) -> Table:
    """Returns what ended attempts held and used, by resource, for each name.

    Args:
        what: What has a name.
        managers: Whose services are added up.
        name_of: The name of a manager's service.
    """
    costs: dict[str, list[common_pb2.Cost]] = {}
    for manager in managers:
        for load in manager.loads:
            costs.setdefault(name_of(manager, load), []).append(load.cost)
    rows = []
    for name, parts in sorted(costs.items())[:_MOST_NODES]:
        cost = sum_of(parts)
        for resource in sorted({*cost.held, *cost.used}):
            held, used = cost.held.get(resource), cost.used.get(resource)
            share = min(used / held, 1.0) if held and used is not None else None
            percent = f" ({100 * share:.0f} %)" if share is not None else ""
            rows.append(
                (
                    Cell(plain_line(name), "/engines"),
                    resource_name(resource),
                    count(NOTHING if held is None else number(held)),
                    Cell(f"{NOTHING if used is None else number(used)}{percent}", share=share, is_number=True),
                )
            )
    caption = f"Held against used by {what}, of attempts that have ended"
    return Table(caption, (what, "resource", "held", "used"), rows, "no attempt has ended yet")


def _failed(job: str, times: int) -> Cell:
    return count(number(times), link("trajectories", job=job).href, "bad")


def nodes_table(nodes: Sequence[admin_service_pb2.NodeStatus]) -> Table:
    """Returns how much of each node is held."""
    rows = []
    for node in sorted(nodes, key=lambda each: each.node_id)[:_MOST_NODES]:
        for resource, capacity in sorted(node.capacity.items()):
            held = capacity - node.free.get(resource, 0)
            share = min(held / capacity, 1.0) if capacity else 0.0
            pool = link("what-if", pool=node.node_id).href
            rows.append(
                (
                    Cell(plain_line(node.node_id), pool),
                    plain_line(resource),
                    Cell(number(held), share=share, is_number=True),
                    count(number(capacity)),
                )
            )
    more = Cell(f"{len(nodes) - _MOST_NODES} more nodes") if len(nodes) > _MOST_NODES else None
    return Table("Units of nodes", ("node", "resource", "held", "of"), rows, "no node is known", more)


def managers_table(managers: Sequence[admin_service_pb2.ManagerStatus]) -> Table:
    """Returns the managers and what each of them has."""
    rows = [
        (
            link("manager", manager=each.manager_id),
            plain_line(each.node_id),
            manager_state(each),
            count(number(each.attempts), link("manager", manager=each.manager_id).href),
            count(number(each.sandboxes), link("manager", manager=each.manager_id).href),
            plain_line(", ".join(service.name for service in each.services[:4])),
        )
        for each in sorted(managers, key=lambda each: each.manager_id)[:_MOST_NODES]
    ]
    more = Cell(f"{len(managers) - _MOST_NODES} more managers") if len(managers) > _MOST_NODES else None
    columns = ("manager", "node", "state", "attempts", "sandboxes", "services")
    return Table("Managers", columns, rows, "none is registered", more)


def manager_state(manager: admin_service_pb2.ManagerStatus) -> Cell:
    """Returns how a manager is."""
    if not manager.connected:
        return Cell("away", tone="bad")
    if manager.draining or manager.leaving:
        return Cell("draining", tone="bad")
    return Cell("connected", tone="good")


def _lost(status: admin_service_pb2.GetStatusResponse) -> Table:
    rows = [
        (
            plain_line(each.manager_id),
            plain_line(each.node_id),
            clock_time(seconds_of(each.time)),
            count(number(each.attempts)),
            count(number(each.sandboxes)),
        )
        for each in status.lost[:_MOST_LOST]
    ]
    return Table("Lost managers", ("manager", "node", "since (UTC)", "attempts", "sandboxes"), rows, "none")
