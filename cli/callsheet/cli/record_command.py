"""`callsheet record`: a job's trajectories as a trace that the simulator replays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.job_commands import JobId
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import CommandError, print_json, say
from callsheet.cli.questions import ask
from callsheet.options.common import DEFAULT_ADDRESS


def record(
    job: JobId,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The file; it is packed if its name ends in .gz.")
    ],
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Write a job's trajectories as a trace for replays.

    callsheet bench sim --trace replays it. It has lengths, CPU time, memory, tokens and policy versions of trajectories
    that have ended, and no contents. The job may be open, or closed for as long as the scheduler keeps its history.
    """
    from callsheet.benchmarks.recording import write_trace

    try:
        trajectories = ask(scheduler, lambda admin: write_trace(admin, job, output))
    except ConnectionError:
        raise
    except OSError as error:
        raise CommandError(f"output: {output}: {error.strerror or error}") from error
    if as_json:
        print_json({"job": job, "output": str(output), "trajectories": trajectories})
    else:
        say(f"{trajectories} trajectories of job {job} in {output}")
