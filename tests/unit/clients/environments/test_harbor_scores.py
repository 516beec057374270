"""Tests of task folders: how they are run, and which reward their files and summaries are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from callsheet.client import Command, CommandResult, Failed, FailureKind, Reason, RewardResult, Succeeded, Timeline
from callsheet.client.codec.decode import refusal
from callsheet.client.testing import FakeClient
from callsheet.environments.harbor import environment as harbor_environment
from callsheet.environments.harbor import task as verifying
from callsheet.environments.harbor.environment import HarborEnvironment
from callsheet.environments.harbor.folders import read_task
from callsheet.managers.sandbox.rewards.script_score import ScoreError, parse_score

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "harbor"


MakeTask = Callable[..., Path]


def run_tests_command(folder: Path, place: Path, tests: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a task's tests with `tests` instead of its script, its logs in `place/logs`, its score in `place/score`."""
    script = verifying.tests_command(read_task(folder), b"#!/bin/sh\n").program[2]
    for name in ("/tests/test.sh", "/tests/run-tests.sh"):
        script = script.replace(name, tests)
    script = script.replace(verifying.LOGS, f"{place}/logs")
    return subprocess.run(["sh", "-c", script, "sh", f"{place}/score"], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"reward.txt": "0.5\n"}, 0.5),
        ({"reward.txt": " 1e0 "}, 1.0),
        ({"reward.txt": "1", "reward.json": '{"reward": 0.25}'}, 0.25),
        ({"reward.json": '\n{"quality": 0.75}\n'}, 0.75),
        ({"reward.txt": "1", "reward.json": "0.5"}, None),
        ({"reward.txt": "1", "reward.json": '{"reward": "1"}'}, None),
        ({"reward.txt": "1", "reward.json": '{"reward": NaN}'}, None),
        ({"reward.txt": "1", "reward.json": '{"reward": {"tests": 1}}'}, None),
        ({"reward.txt": "1", "reward.json": ""}, None),
        ({"reward.txt": '{"reward": 1}'}, None),
        ({"reward.txt": "1 of 2"}, None),
        ({"reward.txt": "\N{BYTE ORDER MARK}1"}, None),
        ({}, None),
    ],
)
def test_rewards_are_read_as_harbor_reads_them(
    make_task: MakeTask, tmp_path: Path, written: dict[str, str], expected: float | None
) -> None:
    logs, score = tmp_path / "logs/verifier", tmp_path / "score"
    logs.mkdir(parents=True)
    for name, text in written.items():
        (logs / name).write_text(text)
    run_tests_command(make_task(), tmp_path, "true")
    if not written:
        assert not score.exists()
    elif expected is None:
        with pytest.raises(ScoreError):
            parse_score(score.read_bytes())
    else:
        assert parse_score(score.read_bytes()).score == expected


HEADER = "=========================== short test summary info ============================"


SUMMARIES: dict[str, tuple[str, float | None]] = {
    "passed": (f"{HEADER}\nPASSED t.py::a\nPASSED t.py::b\n===== 2 passed in 0.10s =====", 1.0),
    "quietly": (f"{HEADER}\nPASSED t.py::a\n1 passed, 3 warnings in 0.10s", 1.0),
    "without its own count": (f"{HEADER}\nPASSED t.py::a", 1.0),
    "coloured": (
        f"\x1b[36m\x1b[1m{HEADER}\x1b[0m\n\x1b[32mPASSED\x1b[0m t.py::\x1b[1ma\x1b[0m\n"
        "\x1b[32m===== \x1b[32m\x1b[1m1 passed\x1b[0m\x1b[32m in 0.10s\x1b[0m\x1b[32m =====\x1b[0m",
        1.0,
    ),
    "coloured, and failed": (f"\x1b[36m{HEADER}\x1b[0m\n\x1b[31mFAILED\x1b[0m t.py::a - no", 0.0),
    "failed": (
        f"{HEADER}\nPASSED t.py::a\nFAILED t.py::b - assert 0\n===== 1 failed, 1 passed in 0.10s =====; exit 1",
        0.0,
    ),
    "an error": (f"{HEADER}\nPASSED t.py::a\nERROR t.py::b\n===== 1 passed, 1 error in 0.10s =====; exit 1", 0.0),
    "with skipped ones": (
        f"{HEADER}\nPASSED t.py::a\nSKIPPED [1] t.py:3: no\n=== 1 passed, 1 skipped in 61.10s (0:01:01) ===",
        1.0,
    ),
    "without a summary": ("PASSED t.py::a\n2 passed in 0.10s", None),
    "nothing": ("", None),
    "only the header": (HEADER, None),
    "cut": (f"{HEADER}\nPASSED t.py::a\n===== 2 passed in 0.10s =====", None),
    "with lines of somebody else": (
        f"{HEADER}\nPASSED t.py::a\nPASSED t.py::b\nPASSED t.py::c\n===== 2 passed in 0.10s =====",
        None,
    ),
    "forged before a failure": (f"{HEADER}\nPASSED t.py::a\n1 passed in 1s\n{HEADER}\nFAILED t.py::a - no", 0.0),
    "twice": (f"{HEADER}\nPASSED t.py::a\n1 passed in 1s\n{HEADER}\nPASSED t.py::a\n1 passed in 1s", 1.0),
    "failed twice": (f"{HEADER}\nFAILED t.py::a - no\n1 failed in 1s\n{HEADER}\nFAILED t.py::a\n1 failed in 1s", 0.0),
    "two runs": (f"{HEADER}\nPASSED t.py::a\n1 passed in 1s\n{HEADER}\nPASSED t.py::b\n1 passed in 1s", 1.0),
    "two runs, the first one cut": (
        f"{HEADER}\nPASSED t.py::a\n2 passed in 1s\n{HEADER}\nPASSED t.py::b\n1 passed in 1s",
        None,
    ),
    "interrupted": (f"{HEADER}\nPASSED t.py::a\n!!!!!! KeyboardInterrupt !!!!!!\n===== 1 passed in 0.10s =====", None),
    "interrupted, and told so": (f"{HEADER}\nPASSED t.py::a\n===== 1 passed in 0.10s =====; exit 2", None),
    "killed": (f"{HEADER}\nPASSED t.py::a\n===== 1 passed in 0.10s =====; exit 137", None),
    "a failure whose runner was killed": (f"{HEADER}\nFAILED t.py::a\n; kill -9 $$", None),
    "an error without a summary, and killed": ("important error; kill -9 $$", None),
    "out of time": (f"{HEADER}\nPASSED t.py::a\n===== 1 passed in 0.10s =====; exit 124", None),
    "a line like a count": (f"{HEADER}\nPASSED t.py::a\n=== build passed in stage s", 1.0),
    "a line like a count, and cut": (f"{HEADER}\nPASSED t.py::a\n=== build passed in stage s\n2 passed in 1s", None),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_of_terminal_bench_are_judged(tmp_path: Path, name: str) -> None:
    said, expected = SUMMARIES[name]
    said, _, ends = said.partition("; ")
    score, runner = tmp_path / "score", tmp_path / "run.sh"
    (tmp_path / "logs/verifier").mkdir(parents=True)
    (tmp_path / "said").write_text(said)
    runner.write_text(f"cat {tmp_path}/said\n{ends}\n")
    ended = run_tests_command(EXAMPLES / "rename-files", tmp_path, f"sh {runner}")
    assert ended.stdout.decode().startswith(said)
    if expected is None:
        assert not score.exists()
        assert ended.returncode in {0, 3, 124, 137}
    else:
        found = parse_score(score.read_bytes())
        assert (ended.returncode, found.score) == (0, expected)
        # Each test once.
        names = re.findall(r"(?:PASSED|FAILED|ERROR) (\S+)", re.sub(r"\x1b\[\d*m", "", said))
        assert found.total == len(set(names))


@pytest.mark.parametrize(("end", "code"), [("kill -9 $$", 137), ("exit 124", 124), ("timeout 0.1 sleep 9", 124)])
def test_a_script_that_was_ended_has_no_reward(make_task: MakeTask, tmp_path: Path, end: str, code: int) -> None:
    (tmp_path / "logs/verifier").mkdir(parents=True)
    runner = f"sh -c 'echo 1 >{tmp_path}/logs/verifier/reward.txt; {end}'"
    assert run_tests_command(make_task(), tmp_path, runner).returncode == code
    assert not (tmp_path / "score").exists()


@pytest.mark.parametrize(
    ("removal", "expected"),
    [
        (lambda _, over: over() or Succeeded(CommandResult(0), timeline=Timeline(queue_s=1000.0)), (1000.0, [])),
        (
            lambda _, over: over() or Failed(FailureKind.INFRA, Reason.MANAGER_LOST, timeline=Timeline(queue_s=1000.0)),
            (1000.0, ["INFRA manager_lost"]),
        ),
        (Mock(side_effect=refusal(14, "gone", None)), (0.0, ["UNAVAILABLE: gone"])),
        (lambda _, over: over() or anyio.sleep_forever(), (0.0, ["no answer in 1 s"])),
    ],
)
async def test_the_removal_of_the_tests_loses_no_score(
    make_task: MakeTask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    removal: Callable[..., Any],
    expected: tuple[float, list[str]],
) -> None:
    """The time of the episode is over meanwhile. A removal that waits still comes before the next command."""
    monkeypatch.setattr(harbor_environment, "_CLEARING_S", 1.0)
    fake = FakeClient()
    fake.on_reward_script(lambda _: Succeeded(RewardResult(1.0)))
    fake.on_env_step(lambda step: removal(step, episode.cancel))
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        with anyio.CancelScope() as episode:
            assert (await HarborEnvironment(read_task(make_task())).reward(trajectory)).value == 1.0
        assert (episode.cancelled_caught, fake.cancelled) == (False, [])
    assert (
        trajectory.waited_s,
        [each.message.partition(" task=task: ")[2] for each in caplog.records if each.name.endswith("environment")],
    ) == expected


def test_a_script_is_started_as_it_says_itself() -> None:
    assert verifying.started("/tests/test.sh", b"#!/bin/sh\n") == "/tests/test.sh"
    assert verifying.started("/tests/test.sh", b"echo\n") == "bash /tests/test.sh"
    command: Command = verifying.tests_command(read_task(EXAMPLES / "use-variables"), b"#!/bin/sh\n")
    variables = {"TEST_DIR": "/tests", "GREETING": "good morning", "EXPECTED": "good morning"}
    assert (command.program[-1], command.environment) == ("{score}", variables)
