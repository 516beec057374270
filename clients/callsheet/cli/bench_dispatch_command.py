"""`callsheet bench dispatch`: what an action costs beside the work."""

from __future__ import annotations

from dataclasses import replace

from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_either, progress_on_stderr
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=DispatchSettings)
def dispatch(*, settings: DispatchSettings, as_json: AsJson = False) -> None:
    """Measure no-op actions, beside raw gRPC streams and Ray."""
    import anyio

    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.dispatch.render import render
        from callsheet.benchmarks.dispatch.run import run_dispatch
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    settings = replace(settings, ray=replace(settings.ray, repetitions=settings.repetitions))
    with progress_on_stderr() as progress:
        report = anyio.run(run_dispatch, settings, progress)
    print_either(as_json, report.as_json, lambda: render(report))
