"""Runs the sandbox benchmark from beginning to end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from callsheet.benchmarks.dispatch.machine import describe_machine
from callsheet.benchmarks.sandbox.measuring import Measured, measure
from callsheet.benchmarks.sandbox.report import SandboxBenchReport, SandboxResult
from callsheet.benchmarks.sandbox.service import measure_service
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings

Progress = Callable[[str], None]


async def run_sandbox_bench(settings: SandboxBenchSettings, progress: Progress = lambda _: None) -> SandboxBenchReport:
    """Measures every number of sandboxes, one after another.

    Args:
        settings: How much.
        progress: Told, as a sentence, what is being measured.

    Raises:
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
        NotMeasurableError: An action or a command did not end well.
        BareToolError: The bare tool does not work here.
        ProcessFailedError: A process of the service did not start (inside an exception group).
    """
    machine = describe_machine()
    results = []
    with tempfile.TemporaryDirectory(prefix="callsheet-sandboxes-") as directory:
        # First what forks in this process, which gRPC's threads would disturb.
        measured = {count: await _measure(settings, count, Path(directory), progress) for count in settings.sandboxes}
        for count in settings.sandboxes:
            progress(f"{count} sandboxes: through the whole service")
            service = await measure_service(settings, count, Path(directory, f"service-{count}"))
            results.append(SandboxResult(count, measured[count], service))
    return SandboxBenchReport(
        isolation=settings.isolation.value,
        capabilities=results[-1].measured.capabilities,
        machine=machine,
        samples=settings.samples,
        results=results,
    )


async def _measure(settings: SandboxBenchSettings, count: int, directory: Path, progress: Progress) -> Measured:
    progress(f"{count} sandboxes: made, used, reset and steered")
    return await measure(settings, count, directory / f"manager-{count}")
