"""What an action costs with TLS and tokens beside without: measured for information, both serve alike."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.client import Client, ClientOptions, Job, Succeeded, Tls
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.deploy.tokens import token_path
from callsheet.scheduler.access.settings import AccessSettings

from tests.support.certificates import Authority
from tests.support.measurements import Measured

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.nightly]

_ROUNDS = 1
_ALONE = 60
_TOGETHER = 400
_DEADLINE_S = 180.0


def _dial(stack: Stack) -> str:
    return f"localhost:{stack.address.rpartition(':')[2]}"


def _cpu_s(stack: Stack) -> float:
    """CPU time of scheduler and manager until now."""
    return sum(sum(psutil.Process(stack.pid(role)).cpu_times()[:2]) for role in (Role.SCHEDULER, "noop"))


async def _alone(job: Job) -> list[float]:
    """Seconds of each of some actions, one after the other."""
    took = []
    for _ in range(_ALONE):
        began = time.perf_counter()
        assert isinstance(await job.tool_call("noop", "call"), Succeeded)
        took.append(time.perf_counter() - began)
    return took


async def _together(job: Job) -> float:
    """Seconds of many actions at once."""
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(_TOGETHER):
            tasks.start_soon(job.tool_call, "noop", "call")
    return time.perf_counter() - began


async def test_actions_with_tls_and_tokens_beside_without(tmp_path: Path, measured: Measured) -> None:
    authority = Authority(tmp_path)
    access = AccessSettings(*authority.sign("server"), tokens=tmp_path / "tokens.json")
    guarded = StackSettings(tmp_path / "guarded", access=access, tls_ca=str(authority.ca), managers=("noop",))
    plain = StackSettings(tmp_path / "plain", managers=("noop",))
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(guarded) as with_them, local_stack(plain) as without:
            token = token_path(guarded.data_dir, "admin").read_text()
            options = ClientOptions(tls=Tls(str(authority.ca)), token=token)
            async with (
                Client(_dial(with_them), options) as one,
                Client(_dial(without)) as other,
                await one.open_job("j") as guarded_job,
                await other.open_job("j") as plain_job,
            ):
                jobs = {"with TLS and tokens": (guarded_job, with_them), "without": (plain_job, without)}
                alone: dict[str, list[float]] = {name: [] for name in jobs}
                together: dict[str, list[float]] = {name: [] for name in jobs}
                cpu = dict.fromkeys(jobs, 0.0)
                for _ in range(_ROUNDS):
                    for name, (job, stack) in jobs.items():
                        alone[name] += await _alone(job)
                        before = _cpu_s(stack)
                        together[name].append(await _together(job))
                        cpu[name] += _cpu_s(stack) - before
    for name in jobs:
        measured(
            f"{name}: an action alone {statistics.median(alone[name]) * 1e3:.2f} ms; "
            f"{_TOGETHER / statistics.median(together[name]):.0f} actions/s together, "
            f"{cpu[name] / _ROUNDS / _TOGETHER * 1e6:.0f} µs of CPU each in scheduler and manager"
        )
