"""`callsheet bench real`: scheduling policies side by side, with real processes."""

from __future__ import annotations

from callsheet.benchmarks.real.settings import RealSettings
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_either, progress_on_stderr
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=RealSettings)
def real(*, settings: RealSettings, as_json: AsJson = False) -> None:
    """Run policies with real commands in real sandboxes.

    They run one after another, each beside the simulator's prediction. Ray runs the same trajectories with commands
    that sleep, and so does callsheet once more.
    """
    import anyio

    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.real.render import render
        from callsheet.benchmarks.real.run import run_real
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        with progress_on_stderr() as progress:
            report = anyio.run(run_real, settings, progress)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    print_either(as_json, report.as_json, lambda: render(report))
