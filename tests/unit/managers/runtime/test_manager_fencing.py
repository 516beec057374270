"""Fencing tokens, and the memory of what has run in a sandbox."""

from __future__ import annotations

from callsheet.managers.fencing import DispatchVerdict, Fence, Token
from callsheet.managers.sandbox_memory import ENDS_KEPT, SandboxMemory, runs_in_sandbox
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2

from tests.support.dispatches import make_dispatch

A = ("j", "a")
B = ("j", "b")


RUN, REPEATED, STALE = DispatchVerdict.RUN, DispatchVerdict.REPEATED, DispatchVerdict.STALE


def judged(fence: Fence, *dispatches: tuple[tuple[str, str], int, int]) -> list[DispatchVerdict]:
    """The verdicts on dispatches of actions, each with the epoch and the sequence of its token."""
    return [fence.judge(action, Token(epoch, sequence)) for action, epoch, sequence in dispatches]


def test_tokens_order_by_epoch_first() -> None:
    assert Token(2, 1) > Token(1, 9)
    assert Token(1, 2) > Token(1, 1)
    assert Token.of(Token(3, 4).message()) == Token(3, 4)


def test_each_token_of_an_action_must_be_greater() -> None:
    dispatches = [(A, 1, 5), (A, 1, 5), (A, 1, 4), (B, 1, 4), (A, 2, 1), (A, 1, 5)]
    assert judged(Fence(), *dispatches) == [RUN, REPEATED, STALE, RUN, RUN, STALE]


def test_earlier_epochs_are_stale_once_a_later_one_is_registered() -> None:
    fence = Fence()
    assert judged(fence, (A, 1, 1)) == [RUN]
    fence.enter_epoch(2)
    assert judged(fence, (B, 1, 2), (A, 1, 1), (B, 2, 1)) == [STALE, REPEATED, RUN]


def test_a_stale_token_is_not_remembered() -> None:
    fence = Fence()
    fence.enter_epoch(2)
    assert judged(fence, (A, 1, 9), (A, 1, 9), (A, 2, 1)) == [STALE, STALE, RUN]


def test_the_action_dispatched_longest_ago_is_forgotten_first() -> None:
    fence = Fence(capacity=2)
    judged(fence, (A, 1, 1), (B, 1, 2), (A, 1, 3), (("j", "c"), 1, 4))
    assert judged(fence, (A, 1, 3), (B, 1, 2)) == [REPEATED, RUN]


def step(action_id: str, sequence: int, sandbox_id: str = "s1") -> manager_service_pb2.Dispatch:
    return make_dispatch(action_id, sequence, kind="env_step", sandbox_id=sandbox_id)


def end_of(dispatch: manager_service_pb2.Dispatch) -> manager_service_pb2.AttemptEnded:
    result = outcome_pb2.CommandResult(exit_code=dispatch.grant.token.sequence)
    return manager_service_pb2.AttemptEnded(
        token=dispatch.grant.token,
        key=dispatch.grant.key,
        attempt=dispatch.grant.attempt,
        succeeded=outcome_pb2.Succeeded(env_step=result),
        started=True,
        body_hash=dispatch.grant.body_hash,
    )


def remember(memory: SandboxMemory, dispatch: manager_service_pb2.Dispatch) -> None:
    memory.remember(dispatch.action, dispatch.grant.sandbox_id, end_of(dispatch))


def sandbox(sandbox_id: str) -> manager_service_pb2.SandboxState:
    return manager_service_pb2.SandboxState(job_id="j", trajectory_id="t", sandbox_id=sandbox_id)


def test_which_actions_change_a_sandbox() -> None:
    suite, script = action_pb2.TestSuiteInput, action_pb2.ScriptScoreInput
    inside = action_pb2.REWARD_PLACE_IN_SANDBOX
    changing = [
        action_pb2.ActionSpec(env_step=action_pb2.EnvStepInput()),
        action_pb2.ActionSpec(reward=action_pb2.RewardInput(test_suite=suite(where=inside))),
        action_pb2.ActionSpec(reward=action_pb2.RewardInput(script=script(where=inside))),
    ]
    others = [
        action_pb2.ActionSpec(),
        action_pb2.ActionSpec(env_reset=action_pb2.EnvResetInput()),
        action_pb2.ActionSpec(reward=action_pb2.RewardInput(test_suite=suite())),
        action_pb2.ActionSpec(reward=action_pb2.RewardInput(script=script())),
        action_pb2.ActionSpec(reward=action_pb2.RewardInput(model=action_pb2.ModelScoreInput())),
    ]
    assert [runs_in_sandbox(action) for action in changing + others] == [True] * 3 + [False] * 5


def test_an_end_is_retold_under_the_new_token() -> None:
    memory = SandboxMemory()
    remember(memory, step("a", 1))
    again = make_dispatch("a", 2, kind="env_step", sandbox_id="s1", attempt=2)
    retold = memory.recall(again)
    assert retold is not None
    assert (retold.token.sequence, retold.attempt, retold.succeeded.env_step.exit_code) == (2, 2, 1)
    assert memory.recall(step("b", 3)) is None
    assert memory.recall(step("a", 3, "s2")) is None


def test_older_ends_are_dropped_but_their_actions_still_known() -> None:
    memory = SandboxMemory()
    for number in range(ENDS_KEPT + 1):
        remember(memory, step(f"a{number}", number + 1))
    forgotten = memory.recall(step("a0", 9))
    assert forgotten is not None
    assert (forgotten.failed.reason, forgotten.started, forgotten.token.sequence) == ("already_ran", True, 9)
    kept = memory.recall(step("a1", 10))
    assert kept is not None
    assert kept.HasField("succeeded")


def test_a_sandbox_that_is_gone_is_forgotten() -> None:
    memory = SandboxMemory()
    remember(memory, step("a", 1))
    memory.forget(sandbox("s2"))
    assert memory.recall(step("a", 2)) is not None
    memory.forget(sandbox("s1"))
    assert memory.recall(step("a", 2)) is None
    remember(memory, step("a", 1))
    memory.retain([sandbox("s1")])
    assert len(memory) == 1
    memory.retain([sandbox("s2")])
    assert len(memory) == 0


def test_a_new_sandbox_takes_the_place_of_the_old_one() -> None:
    memory = SandboxMemory()
    remember(memory, step("a", 1))
    remember(memory, step("b", 2, "s2"))
    assert len(memory) == 1
    assert memory.recall(step("a", 3, "s2")) is None
    assert memory.recall(step("b", 3, "s2")) is not None
