"""Rewards in copies of sandboxes with images, with set-ups that are kept, and with limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.client import Client, EnvReset, EnvStep, FailedPreconditionError, RewardScript, SandboxFile, Where
from callsheet.managers.executor import AttemptResult, Completed, Stopped
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.rewards import report_counts
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed, failure, running_executor
from tests.support.real_sandboxes import sandbox_stack
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step, suite
from tests.support.sandboxes import Variant, settings_for, tells, variants

pytestmark = pytest.mark.anyio


async def test_a_trajectory_gets_its_score_in_a_copy_by_default(tmp_path: Path) -> None:
    async with (
        sandbox_stack(tmp_path) as stack,
        Client(stack.address) as client,
        await client.open_job("job") as job,
        job.trajectory("t") as trajectory,
    ):
        with pytest.raises(FailedPreconditionError):
            await trajectory.reward_tests("true")
        empty = await trajectory.reward_tests("test -e given", files=[SandboxFile("given", b"")])
        assert empty.unwrap().score == 1.0
        # All at once, in this order.
        background = "echo 42 > answer; (sleep 1000; echo 41 > answer) > /dev/null 2>&1 &"
        reset = await trajectory.submit(EnvReset(service="sandbox"))
        step = await trajectory.submit(EnvStep(background))
        score = await trajectory.submit(RewardScript("cat answer > {score} && rm answer"))
        after = await trajectory.submit(EnvStep("cat answer"))
        (await reset).unwrap()
        (await step).unwrap()
        assert (await score).unwrap().score == 42.0
        assert (await after).unwrap().stdout == b"42\n"
        in_place = await trajectory.reward_tests("grep -q 42 answer", where=Where.IN_SANDBOX, service="test-suite")
        assert in_place.unwrap().score == 1.0


@pytest.fixture(params=variants(Isolation.BUBBLEWRAP, Isolation.NONE, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


@pytest.fixture
async def with_image(tmp_path: Path) -> AsyncIterator[SandboxExecutor]:
    require_overlays()
    root = make_root(tmp_path / "images" / "tiny")
    (root / "opt").mkdir(exist_ok=True)
    (root / "opt" / "given").write_text("given\n")
    (root / "opt" / "unwanted").write_text("unwanted\n")
    settings = settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path / "data")
    supply = ProvisioningSettings(images=tmp_path / "images")
    async with running_executor(replace(settings, provisioning=supply)) as executor:
        yield executor


async def began(executor: SandboxExecutor, action: action_pb2.ActionSpec, memory: int = 128) -> str:
    return (await completed(executor, action, resources={"memory": memory})).env_reset.sandbox_id


async def stepped(executor: SandboxExecutor, script: str, sandbox_id: str, trajectory: str = "trajectory") -> str:
    done = (await completed(executor, step(script, trajectory=trajectory), sandbox_id=sandbox_id)).env_step
    assert done.exit_code == 0, done
    return done.stdout.inline.decode()


async def rewarded(executor: SandboxExecutor, script: str, sandbox_id: str, trajectory: str = "trajectory") -> str:
    action = suite(script, inline_file("hidden", b"hidden\n"))
    action.trajectory_id = trajectory
    return (await completed(executor, action, sandbox_id=sandbox_id)).reward.command.stdout.inline.decode()


async def test_a_copy_of_a_sandbox_with_an_image_has_its_changes_above_the_same_image(
    with_image: SandboxExecutor,
) -> None:
    action = reset(set_up="echo set-up > /opt/made; echo kept > /tmp/left")
    action.env_reset.image = "tiny"
    for trajectory in ("first", "second"):
        action.trajectory_id = trajectory
        sandbox_id = await began(with_image, action)
        changes = "echo own > /opt/own; rm /opt/unwanted; echo more >> /opt/made; echo x > own; echo own > /tmp/own"
        await stepped(with_image, changes, sandbox_id, trajectory)
        look = "ls -A . /opt; cat /opt/made /opt/given; cat /tmp/own; echo left > /opt/given; touch /opt/reward"
        seen = await rewarded(with_image, look, sandbox_id, trajectory)
        assert seen == ".:\nhidden\nown\n\n/opt:\ngiven\nmade\nown\nset-up\nmore\ngiven\n".replace(
            "own\nset", "own\nset"
        )
        assert (
            await stepped(with_image, "ls /opt; cat /opt/given", sandbox_id, trajectory) == "given\nmade\nown\ngiven\n"
        )


async def test_what_a_kept_set_up_left_is_there_for_each_sibling_and_what_it_deleted_is_not(
    executor: SandboxExecutor, settings: SandboxSettings
) -> None:
    action = reset(set_up="echo 1 > one; echo 2 > two; echo 3 > $TMPDIR/three")
    for trajectory in ("first", "second"):
        action.trajectory_id = trajectory
        sandbox_id = await began(executor, action)
        await stepped(executor, "rm one; echo own > own; echo own > $TMPDIR/own", sandbox_id, trajectory)
        temporary = "three\n" if settings.isolation is Isolation.BUBBLEWRAP else ""
        look = "ls -A; ls -A $TMPDIR | grep -v home- || :"
        assert await rewarded(executor, look, sandbox_id, trajectory) == f"hidden\nown\ntwo\n{temporary}"


async def test_defaults_of_the_sandbox_hold_in_a_copy_and_its_own_files_go_before(executor: SandboxExecutor) -> None:
    action = reset(inline_file("hidden", b"old\n"))
    action.env_reset.defaults.working_directory = "deep/place"
    action.env_reset.defaults.environment["GIVEN"] = "given"
    sandbox_id = await began(executor, action)
    assert await rewarded(executor, "basename $PWD; echo $GIVEN; cat hidden", sandbox_id) == "place\ngiven\nhidden\n"


async def test_a_reward_that_uses_up_its_memory_costs_the_trajectory_nothing(
    executor: SandboxExecutor, settings: SandboxSettings
) -> None:
    sandbox_id = await began(executor, reset())
    if tells(settings, "memory"):
        bomb = suite('python3 -c "x = []\nwhile True: x.append(bytes(8 << 20))"', inline_file("f", b""))
        ended = failure(await executor.run(attempt_of(bomb, sandbox_id=sandbox_id)))
        assert ended == ("RESOURCE_LIMIT", "out_of_memory")
    fill = suite("kill -9 1; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=4000 2> /dev/null", inline_file("f", b""))
    if settings.isolation is not Isolation.NONE:
        await executor.run(attempt_of(fill, sandbox_id=sandbox_id))
    assert await stepped(executor, "echo alive", sandbox_id) == "alive\n"
    assert len(executor.sandboxes()) == 1


async def test_a_sandbox_that_is_gone_or_not_wanted_any_more_is_not_copied(executor: SandboxExecutor) -> None:
    sandbox_id = await began(executor, reset())
    action = suite("true", inline_file("f", b""))
    assert failure(await executor.run(attempt_of(action, sandbox_id="another"))) == ("INFRA", "state_lost")
    stopped = attempt_of(action, sandbox_id=sandbox_id)
    stopped.stop_requested.set()
    assert isinstance(await executor.run(stopped), Stopped)
    assert await stepped(executor, "echo alive", sandbox_id) == "alive\n"


@pytest.mark.parametrize("settings", variants(Isolation.NONE)[:1], ids=str, indirect=True)
async def test_what_is_too_large_to_copy_is_told_as_a_limit(settings: SandboxSettings) -> None:
    small = replace(settings, provisioning=replace(settings.provisioning, largest_set_up_mib=1))
    executor = build_sandbox_executor(small)
    sandbox_id = await began(executor, reset())
    await stepped(executor, "head -c 2000000 /dev/zero > large", sandbox_id)
    ended = failure(await executor.run(attempt_of(suite("true", inline_file("f", b"")), sandbox_id=sandbox_id)))
    assert ended == ("RESOURCE_LIMIT", "copy_too_large")
    assert list((small.data_directory / "sandboxes" / small.manager_id / "copies").iterdir()) == []
    await executor.close()


REPORTS = (
    'echo "<testsuite>" >{report}; for name in $(cat names); do echo "<testcase/>" >>{report}; done; '
    'echo "</testsuite>" >>{report}'
)
RESETS = {
    "files alone": reset(inline_file("names", b"a b c")),
    "a set-up that is kept": reset(set_up="echo a b >names; echo c >>names"),
    "a set-up that leaves a process": reset(set_up="echo a b c >names; sleep 1000 >/dev/null 2>&1 &"),
    "a set-up that is repeated": reset(set_up="echo a b c >names"),
}
RESETS["a set-up that is repeated"].env_reset.repeat_set_up = True


async def counted(executor: SandboxExecutor, action: action_pb2.ActionSpec) -> None:
    for trajectory in ("first", "second"):
        action.trajectory_id = trajectory
        sandbox_id = await began(executor, action)
        judge = suite(REPORTS)
        judge.trajectory_id = trajectory
        for names, expected in (("a b c", 1.0), ("a b c d", 1.0), ("a b", "tests_missing"), ("a b c", 1.0)):
            await stepped(executor, f"echo {names} >names", sandbox_id, trajectory)
            result = await executor.run(attempt_of(judge, sandbox_id=sandbox_id))
            if isinstance(result, Completed):
                assert result.succeeded.reward.score == expected
            else:
                assert failure(result) == ("POLICY", expected)
        held = [state for state in executor.sandboxes() if state.trajectory_id == trajectory]
        assert len(held) == 1


@pytest.mark.parametrize("name", RESETS)
async def test_the_tests_that_there_are_after_a_reset_are_counted(executor: SandboxExecutor, name: str) -> None:
    copied = action_pb2.ActionSpec()
    copied.CopyFrom(RESETS[name])
    await counted(executor, copied)


@pytest.mark.parametrize("name", RESETS)
async def test_the_tests_of_an_image_are_counted(with_image: SandboxExecutor, name: str) -> None:
    copied = action_pb2.ActionSpec()
    copied.CopyFrom(RESETS[name])
    copied.env_reset.image = "tiny"
    await counted(with_image, copied)


async def test_the_time_of_a_reward_is_that_of_the_run_it_is_compared_with(executor: SandboxExecutor) -> None:
    """Whatever the sandbox of that run takes to be made."""
    sandbox_id = await began(executor, reset(set_up="sleep 4; echo a b >names; sleep 1000 >/dev/null 2>&1 &"))
    await stepped(executor, "echo a b >names", sandbox_id)
    killed = suite("test -e given && kill -9 $$; sleep 1000", inline_file("given", b""))
    results: list[AttemptResult] = []
    for action, place in ((suite(REPORTS), sandbox_id), (killed, "")):
        action.timeouts.start_to_close.FromSeconds(3)
        attempt = attempt_of(action, sandbox_id=place)
        attempt.grant.attempt = 2
        results.append(await executor.run(attempt))
    assert isinstance(results[0], Completed), results[0]
    assert failure(results[1]) == ("ENV", "runner_ended")
    assert "it took more than 3 s" in str(results[1])


@pytest.mark.parametrize("in_sandbox", [False, True])
async def test_a_large_report_is_counted_on_the_account_of_its_sandbox(
    executor: SandboxExecutor,
    settings: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_sandbox: bool,
) -> None:
    told, program = tmp_path / "told", tmp_path / "counting.py"
    groups = f"open({str(told)!r}, 'w').write(open('/proc/self/cgroup').read())"
    program.write_text(f"import runpy\nrunpy.run_path({report_counts.__file__!r}, run_name='__main__')\n{groups}\n")
    monkeypatch.setattr(report_counts, "__file__", str(program))
    sandbox_id = await began(executor, reset())
    for case, outcome in (("<testcase/>", "Completed"), ("<testcase", "bad_report")):
        report = f"<testsuite><testcase><failure/></testcase>{'<testcase/>' * 29_999}{case}</testsuite>"
        action = suite("cat large > {report}; exit 1", inline_file("large", report.encode()), in_sandbox=in_sandbox)
        result = await executor.run(attempt_of(action, sandbox_id=sandbox_id))
        if isinstance(result, Completed):
            assert (result.succeeded.reward.passed, result.succeeded.reward.total) == (30_000, 30_001)
        assert (type(result).__name__ if isinstance(result, Completed) else failure(result)[1]) == outcome
        assert (told.read_text() != own_groups()) == settings.use_control_groups
        told.unlink()


def own_groups() -> str:
    return Path("/proc/self/cgroup").read_text()
