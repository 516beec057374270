"""Arguments as people type them: files by path, standard input as text, numbers of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from callsheet.client import (
    Command,
    CommandResult,
    Demand,
    Elastic,
    EnvReset,
    EnvResetResult,
    EnvStep,
    Generate,
    InvalidArgumentError,
    RewardResult,
    RewardScript,
    RewardTests,
    Sampling,
    SandboxFile,
    Succeeded,
)
from callsheet.client.codec.actions import encode_submission
from callsheet.client.codec.jobs import encode_batch_request
from callsheet.client.settings import ClientOptions
from callsheet.client.testing import FakeClient
from callsheet.client.words.actions import Submission
from callsheet.client.words.jobs import BatchRequest

_BY_PATH: dict[str, str | bytes] = {"a.py": "print('é')", "b": b"\x00"}
_AS_VALUES = (SandboxFile("a.py", "print('é')".encode()), SandboxFile("b", b"\x00"))


@pytest.mark.parametrize("action", [EnvReset, EnvStep, RewardTests, RewardScript])
def test_files_are_taken_by_path(action: Any) -> None:
    command = () if action is EnvReset else ("true",)
    assert action(*command, files=_BY_PATH) == action(*command, files=_AS_VALUES)
    assert action(*command, files=iter(_AS_VALUES)).files == _AS_VALUES


@pytest.mark.parametrize("files", [{"a": 5}, {"a": None}, {"a": "\ud800"}, {5: "text"}, "a.py", 7, [("a", b"")]])
def test_what_is_no_file_is_named(files: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="files"):
        encode_submission(Submission("job", "t", "a", EnvStep("true", files=files), {}))


async def test_verbs_take_files_by_path_and_standard_input() -> None:
    fake = FakeClient()
    seen: list[Any] = []
    fake.on_env_reset(lambda action: seen.append(action) or Succeeded(EnvResetResult("s")))  # type: ignore[func-returns-value]
    fake.on_env_step(lambda action: seen.append(action) or Succeeded(CommandResult(0)))  # type: ignore[func-returns-value]
    for scored in (fake.on_reward_tests, fake.on_reward_script):
        scored(lambda action: seen.append(action) or Succeeded(RewardResult(1.0)))  # type: ignore[func-returns-value]
    async with await fake.open_job("job") as job, job.trajectory("t") as trajectory:
        await trajectory.env_reset(files=_BY_PATH)
        await trajectory.env_step("cat", files=_BY_PATH, stdin="text")
        await trajectory.reward_tests(["true"], files=_BY_PATH)
        await trajectory.reward_script(["true", "{score}"], files=_BY_PATH)
    assert [each.files for each in seen] == [_AS_VALUES] * 4
    assert seen[1].command.stdin == b"text"


def test_standard_input_is_given_once() -> None:
    assert EnvStep(["cat"], stdin=b"bytes").command == Command.argv("cat", stdin=b"bytes")
    assert EnvStep(Command.argv("cat", stdin=b"own")).command.stdin == b"own"
    with pytest.raises(InvalidArgumentError, match="stdin"):
        EnvStep(Command.argv("cat", stdin=b"own"), stdin="other")
    wrong: Any = 5
    with pytest.raises(InvalidArgumentError, match="stdin"):
        EnvStep("cat", stdin=wrong)


@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint8])
async def test_whole_numbers_of_numpy_are_taken_as_pythons(whole: Any) -> None:
    def encoded(number: Any) -> tuple[bytes, ...]:
        sampling = Sampling(max_new_tokens=number(5), seed=number(3), top_k=number(2))
        step = EnvStep(Command.argv("true", max_output_bytes=number(9)), files=[SandboxFile("a", b"", mode=number(7))])
        demand = Demand(cpu=Elastic(number(1), number(4), speed_up={number(2): 1.5}), memory_mib=number(64))
        actions: tuple[Any, ...] = (
            Generate([number(1), number(2)], sampling),
            EnvReset(disk_mib=number(8), max_processes=number(3)),
            step,
        )
        options: Any = {"demand": demand, "weight": number(2), "expected_duration_s": number(5)}
        messages = [encode_submission(Submission("job", "t", "a", action, options)) for action in actions]
        batch = encode_batch_request("job", BatchRequest("b", number(1), number(4), number(0), number(9)))
        return (*(str(message).encode() for message in messages), batch.SerializeToString())

    assert encoded(whole) == encoded(int)
    ClientOptions(outbox_items=whole(7), connect_timeout_s=whole(1))
    fake = FakeClient()
    async with await fake.open_job(
        "job", max_actions=whole(9), max_buffered=whole(8), share=float(np.float32(0.5))
    ) as job:
        await job.publish(whole(3))
        async with job.group("g", size=whole(2), quorum=whole(1), max_replacements=whole(1)) as group:
            assert group.size == 2


@pytest.mark.parametrize("value", [np.float64(1.5), True, "1"])
def test_what_is_no_whole_number_is_still_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="at_least"):
        encode_batch_request("job", BatchRequest("b", value, 4, 0.0, None))
