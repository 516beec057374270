"""`callsheet top`: jobs, nodes and what waits longest, as they are now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import FINISHED, failures_of, pairs, print_json, print_report, table_of
from callsheet.cli.questions import connection_options
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.admin_values import Explanation, SchedulerStatus

_MOST_JOBS: Final = 20
"""Most jobs of which the oldest actions are asked for."""
_OLDEST_OF_JOB: Final = 5
_LONGEST: Final = 10


@dataclass(frozen=True, slots=True)
class TopLook:
    """A scheduler's answers at one time, in seconds since the epoch; `waiting` has actions of all jobs."""

    at: float
    status: SchedulerStatus
    waiting: tuple[Explanation, ...]


def top(
    scheduler: Address = DEFAULT_ADDRESS,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 2.0,
    looks: Annotated[
        int | None,
        typer.Option(help="End after this number of looks.", min=1, show_default="none on a terminal, else 1"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show jobs, nodes and the longest waits, again and again.

    Each waiting action has the reason of `callsheet explain`. Ctrl-C ends the command, and a restart of the scheduler
    does not. With --json each look is one object.
    """
    import anyio
    from callsheet.cli.console import TextConsole
    from callsheet.cli.plain import to_plain
    from callsheet.client.admin import AdminClient
    from rich.live import Live
    from rich.text import Text

    console = TextConsole()
    most = looks if looks is not None or console.is_terminal else 1
    live = Live(console=console, screen=most is None, auto_refresh=False)
    to_terminal = partial(live.update, refresh=True)
    show: Any = print_json if as_json else to_terminal if console.is_terminal else print_report

    async def watch() -> None:
        before: TopLook | None = None
        async with AdminClient(scheduler, connection_options()) as admin:
            for number in count(1):
                try:
                    look = await _look(admin)
                except ConnectionError as error:
                    # One that was there may come again, for instance after a restart.
                    if before is None or as_json:
                        raise
                    show(Text(f"no answer since {time.strftime('%H:%M:%S', time.localtime(before.at))}: {error}"))
                else:
                    show(to_plain(look) if as_json else _picture(scheduler, look, before))
                    before = look
                if number == most:
                    return
                await anyio.sleep(interval)

    with live if console.is_terminal and not as_json else nullcontext():
        anyio.run(watch)


async def _look(admin: AdminClient) -> TopLook:
    from callsheet.client.errors import NotFoundError

    status = await admin.status()
    waiting: list[Explanation] = []
    busiest = sorted(status.jobs, key=lambda job: -job.actions.get("queued", 0))[:_MOST_JOBS]
    for job in busiest:
        if job.actions.get("queued"):
            try:
                found = await admin.actions(job.job_id, at_most=_OLDEST_OF_JOB)
            except NotFoundError:
                continue  # It was closed since.
            waiting += [each for each in found.actions if each.explanation]
    waiting.sort(key=_since)
    return TopLook(time.time(), status, tuple(waiting[:_LONGEST]))


def _picture(scheduler: str, look: TopLook, before: TopLook | None) -> Any:
    from rich.console import Group
    from rich.text import Text

    status = look.status
    up = _duration(look.at - status.started_at)
    known = f"{len(status.managers)} managers, {len(status.lost)} lost"
    return Group(
        Text(f"scheduler {scheduler}, epoch {status.epoch}, up {up}; {known}; {time.strftime('%H:%M:%S')}"),
        table_of(
            f"Jobs: {len(status.jobs)}",
            ["job", "trajectories #", "actions", "ended/s #", "failures"],
            list(_job_rows(look, before)),
        ),
        table_of("Nodes", ["node", "resource", "in use #", "of #"], list(_node_rows(status))),
        table_of("Waiting longest", ["action", "job", "kind", "for #", "why"], list(_waiting_rows(look))),
    )


def _job_rows(look: TopLook, before: TopLook | None) -> Iterator[list[str]]:
    ended = {job.job_id: _ended(job.actions) for job in before.status.jobs} if before else {}
    for job in look.status.jobs:
        open_ = {state: count for state, count in job.actions.items() if state not in FINISHED}
        rate = ""
        if before is not None and job.job_id in ended:
            rate = f"{(_ended(job.actions) - ended[job.job_id]) / (look.at - before.at):.1f}"
        yield [job.job_id, str(job.open_trajectories), pairs(open_), rate, failures_of(job)]


def _node_rows(status: SchedulerStatus) -> Iterator[list[str]]:
    for node in status.nodes:
        for resource, units in sorted(node.capacity.items()):
            yield [node.node_id, resource, str(units - node.free.get(resource, 0)), str(units)]


def _waiting_rows(look: TopLook) -> Iterator[list[str]]:
    for each in look.waiting:
        kind = each.kind.value if each.kind else "action"
        yield [each.action_id, each.job_id, kind, _duration(look.at - _since(each)), each.explanation]


def _since(found: Explanation) -> float:
    return found.story[0].at if found.story else 0.0


def _ended(actions: Any) -> int:
    return sum(actions.get(state, 0) for state in FINISHED)


def _duration(seconds: float) -> str:
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
