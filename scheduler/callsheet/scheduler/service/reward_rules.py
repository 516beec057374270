"""Rules for rewards: where they run, and what they need there. Returns the stored payloads that an input refers to."""

from __future__ import annotations

from callsheet.scheduler.core.model import invalid
from callsheet.scheduler.service.payload_rules import References, check_command, check_files, check_image, check_path
from callsheet.scheduler.service.rules import known, token_ids
from callsheet.v1 import action_pb2
from callsheet.v1.rewards import CommandScorer, scores_in_sandbox

SCORE_PLACEHOLDER = "{score}"


def check_reward(reward: action_pb2.RewardInput, trajectory_id: str) -> References:
    """A test suite, a script or a model input."""
    match reward.WhichOneof("scorer"):
        case "test_suite":
            return _check_place("reward.test_suite", reward, reward.test_suite, trajectory_id)
        case "script":
            references = _check_place("reward.script", reward, reward.script, trajectory_id)
            _check_score_file(reward.script)
            return references
        case "model":
            token_ids("reward.model.token_ids", reward.model.token_ids)
            return []
        case _:
            raise invalid("reward.scorer", "", "must be one of test_suite, model and script")


def _check_place(field: str, reward: action_pb2.RewardInput, runs: CommandScorer, trajectory_id: str) -> References:
    known(f"{field}.where", runs.where, action_pb2.RewardPlace.values())
    known(f"{field}.background", runs.background, action_pb2.RewardBackground.values())
    if runs.background and not scores_in_sandbox(reward):
        name = action_pb2.RewardBackground.Name(runs.background)
        raise invalid(f"{field}.background", name, "must be unset: a fresh sandbox has no processes yet")
    references = check_files(f"{field}.files", runs.files)
    if not runs.HasField("command"):
        raise invalid(f"{field}.command", "", "must be set")
    references += check_command(f"{field}.command", runs.command)
    check_image(f"{field}.image", runs.image)
    if scores_in_sandbox(reward):
        if runs.image:
            raise invalid(f"{field}.image", runs.image, "must be empty in the trajectory's sandbox, which has its own")
    elif not runs.files and not runs.image and not trajectory_id:
        rule = "without a trajectory a fresh sandbox is empty: give files or an image"
        raise invalid(f"{field}.files", "[]", rule)
    return references


def _check_score_file(script: action_pb2.ScriptScoreInput) -> None:
    command = script.command
    texts = [*command.argv.arguments, command.shell, command.python]
    has_placeholder = any(SCORE_PLACEHOLDER in text for text in texts)
    if script.score_file:
        check_path("reward.script.score_file", script.score_file)
        if has_placeholder:
            rule = f"must be empty where the command has {SCORE_PLACEHOLDER!r}"
            raise invalid("reward.script.score_file", script.score_file, rule)
    elif not has_placeholder:
        rule = f"must name the file with the score, or the command must have {SCORE_PLACEHOLDER!r}"
        raise invalid("reward.script.score_file", "", rule)
