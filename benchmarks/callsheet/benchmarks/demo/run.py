"""Runs the whole demo: inputs, a local stack, the workload in both modes, the report."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
from callsheet.benchmarks.demo.episodes import make_episodes
from callsheet.benchmarks.demo.inputs import DemoInputs, prepare_inputs
from callsheet.benchmarks.demo.modes import CALLSHEET, RESERVED, DemoMode
from callsheet.benchmarks.demo.report import DemoReport, RunReport, report_of
from callsheet.benchmarks.demo.settings import DemoSettings, choose_cpus, choose_trajectories
from callsheet.benchmarks.demo.workload import ModeRun, run_mode
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.client.client import Client
from callsheet.client.settings import ClientOptions
from callsheet.deploy.checks import group_note
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import NOT_ISOLATED, Isolation
from callsheet.options.temporary_directories import temporary_directory


async def run_demo(settings: DemoSettings, progress: Progress) -> DemoReport:
    """Runs the demo.

    Args:
        settings: What to run.
        progress: Told what is going on, a short line each time.

    Raises:
        SourceReleaseError: An input cannot be fetched.
        ValueError: The settings do not fit this machine.
        ProcessFailedError: The scheduler or a manager did not start (inside an exception group).
        CallsheetError: The scheduler refused something, or cannot be reached (inside an exception group).
    """
    began = time.monotonic()
    cpus = choose_cpus(settings, len(os.sched_getaffinity(0)))
    inputs = await anyio.to_thread.run_sync(prepare_inputs, settings.cache, progress, abandon_on_cancel=True)
    isolation = await _choose_isolation(settings, progress)
    cores = cpus - share_of_cores(cpus, None)
    episodes = make_episodes(choose_trajectories(settings, cores), settings.seed, inputs.releases)
    with _data_directory(settings) as data_dir:

        async def run(mode: DemoMode) -> ModeRun:
            progress("starting the scheduler and the sandbox, inference and reward managers")
            stack_settings = StackSettings(
                data_dir=data_dir,
                cpus=cpus,
                given={"isolation": isolation, "share_cores": mode.share_cores},
                arguments={Role.SANDBOX: ["--stage", str(inputs.staged)]},
            )
            # A data directory may hold jobs of an earlier run that was killed.
            run_id = uuid.uuid4().hex[:8]
            async with local_stack(stack_settings) as stack, Client(stack.address) as client:
                progress("warming up")
                await _warm_up(client, f"demo-warm-up-{run_id}", mode, inputs)
                return await run_mode(client, f"demo-{mode.name}-{run_id}", episodes, mode, progress)

        ours, theirs = [await run(mode) for mode in (CALLSHEET, RESERVED)]
    return DemoReport(
        callsheet=report_of(ours, cores),
        reserved=report_of(theirs, cores),
        trajectories=len(episodes),
        seed=settings.seed,
        isolation=isolation.value,
        wall_s=time.monotonic() - began,
    )


async def run_on_stack(options: ClientOptions, settings: DemoSettings, progress: Progress) -> RunReport:
    """Runs the workload once, by action, on the stack of `settings.scheduler`.

    Args:
        options: How to connect to it.
        settings: What to run.
        progress: Told what is going on, a short line each time.

    Raises:
        SourceReleaseError: An input cannot be fetched.
        CallsheetError: The scheduler refused something, or cannot be reached (inside an exception group).
    """
    began = time.monotonic()
    inputs = await anyio.to_thread.run_sync(prepare_inputs, settings.cache, progress, abandon_on_cancel=True)
    episodes = make_episodes(choose_trajectories(settings, 0), settings.seed, inputs.releases)
    job_id = settings.job or f"demo-{uuid.uuid4().hex[:8]}"
    async with Client(settings.scheduler or "", options) as client:
        run = await run_mode(client, job_id, episodes, CALLSHEET, progress)
    return RunReport(report_of(run, 0), len(episodes), settings.seed, time.monotonic() - began)


async def _choose_isolation(settings: DemoSettings, progress: Progress) -> Isolation:
    if settings.isolation is Isolation.NONE:
        progress(NOT_ISOLATED)
    if groups := await anyio.to_thread.run_sync(group_note, settings.isolation):
        progress(groups)
    if settings.isolation in {Isolation.DOCKER, Isolation.NONE}:
        return settings.isolation
    probe = await anyio.to_thread.run_sync(probe_bubblewrap)
    if probe.works:
        return Isolation.BUBBLEWRAP
    if settings.isolation is Isolation.BUBBLEWRAP:
        raise ValueError(f"isolation: bubblewrap: does not work here: {probe.reason}")
    progress(
        f"NO ISOLATION: bubblewrap does not work here ({probe.reason}). The demo runs its own commands as plain "
        "processes instead; `callsheet up` would refuse"
    )
    return Isolation.NONE


@contextmanager
def _data_directory(settings: DemoSettings) -> Iterator[Path]:
    if settings.data_dir is not None:
        yield settings.data_dir.absolute()
        return
    with temporary_directory("callsheet-demo-") as directory:
        yield directory


async def _warm_up(client: Client, job_id: str, mode: DemoMode, inputs: DemoInputs) -> None:
    """Runs one episode of each family, uncounted and at once, so that neither mode pays for cold caches."""
    hurried = replace(mode, tokens_per_s=math.inf)
    await run_mode(client, job_id, make_episodes(2, 1, inputs.releases), hurried, lambda _: None)
