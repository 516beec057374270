"""`callsheet scheduler`: the scheduler alone."""

from __future__ import annotations

from callsheet.cli.errors import needs
from callsheet.cli.options import options_of
from callsheet.deploy.scheduler_process import SchedulerOptions, run_scheduler_process


@options_of(options=SchedulerOptions)
def scheduler(*, options: SchedulerOptions) -> None:
    """Run the scheduler alone, until SIGINT or SIGTERM."""
    with needs("scheduler"):
        run_scheduler_process(options)
