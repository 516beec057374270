"""`callsheet bench sandbox`: what sandboxes cost."""

from __future__ import annotations

from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_either, progress_on_stderr
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=SandboxBenchSettings)
def sandbox(*, settings: SandboxBenchSettings, as_json: AsJson = False) -> None:
    """Measure what sandboxes cost while others live.

    They are made, reset, used, moved and frozen, beside the bare tool doing the same.
    """
    import anyio

    with needs("bench"):
        from callsheet.benchmarks.sandbox.render import render
        from callsheet.benchmarks.sandbox.run import run_sandbox_bench
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    with progress_on_stderr() as progress:
        report = anyio.run(run_sandbox_bench, settings, progress)
    print_either(as_json, report.as_json, lambda: render(report))
