"""Runs the sandbox benchmark from beginning to end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from callsheet.benchmarks.measuring.actions import NotMeasurableError
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.sandbox.measuring import measure
from callsheet.benchmarks.sandbox.report import SandboxBenchReport, SandboxResult
from callsheet.benchmarks.sandbox.service import measure_service
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.managers.node import usable_memory_mib


async def run_sandbox_bench(settings: SandboxBenchSettings, progress: Progress = lambda _: None) -> SandboxBenchReport:
    """Measures every number of sandboxes, one after another.

    Args:
        settings: How much.
        progress: Told, as a sentence, what is being measured.

    Raises:
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
        NotMeasurableError: An action or a command did not end well, or the memory is too small for so many sandboxes.
        BareToolError: The bare tool does not work here.
        ProcessFailedError: A process of the service did not start (inside an exception group).
    """
    _check_memory(settings, usable_memory_mib())
    machine = describe_machine()
    results = []
    with tempfile.TemporaryDirectory(prefix="callsheet-sandboxes-") as directory:
        # First what forks in this process, which gRPC's threads would disturb.
        measured = {}
        for count in settings.sandboxes:
            progress(f"{count} sandboxes: made, used, reset and steered")
            measured[count] = await measure(settings, count, Path(directory, f"manager-{count}"))
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


def _check_memory(settings: SandboxBenchSettings, usable_mib: int) -> None:
    """Without the room for them all the last ones would wait for one of the others to go."""
    # One more competes with them.
    needed_mib = (max(settings.sandboxes) + 1) * settings.memory_mib
    if needed_mib > usable_mib:
        raise NotMeasurableError(
            f"sandboxes: {max(settings.sandboxes)} of {settings.memory_mib} MiB each, and one more, hold {needed_mib} "
            f"MiB and this machine has {usable_mib}; ask for fewer, or for less memory_mib"
        )
