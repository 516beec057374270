"""`callsheet trace`: a job's history for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from callsheet.cli.job_commands import JobId
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import CommandError, print_json, say
from callsheet.cli.questions import ask
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient


def trace(
    job: JobId,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The file, such as run.json.")],
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Write the time-line of a job as a trace for Perfetto.

    Perfetto (ui.perfetto.dev) opens the file, which is in Chrome's trace format. It has executions by engine and node,
    waits, and arrows from each action of a trajectory to the next, and no contents. The job may be open. A closed job
    can be written while the scheduler keeps its history.
    """
    import json

    trace = ask(scheduler, lambda admin: _trace(admin, job))
    try:
        output.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"output: {output}: {error.strerror or error}") from error
    count = len(trace["traceEvents"])
    if as_json:
        print_json({"job": job, "output": str(output), "events": count})
    else:
        say(f"{count} events of job {job} in {output}")


async def _trace(admin: AdminClient, job: str) -> dict[str, Any]:
    import time

    from callsheet.cli.chrome_trace import trace_events

    trajectories = [each async for each in admin.trajectory_history(job)]
    actions = [each async for each in admin.action_history(job)]
    events = list(trace_events(trajectories, actions, time.time()))
    return {"displayTimeUnit": "ms", "otherData": {"job": job}, "traceEvents": events}
