"""Rules for rewards: where they run, and what they need there. Each function raises RefusedError INVALID_ARGUMENT."""

from __future__ import annotations

from typing import Final

from callsheet.v1 import action_pb2
from callsheet.v1.names import MAX_TEXT, SCORE_PLACEHOLDER
from callsheet.v1.refusals import bad_text, invalid
from callsheet.v1.rewards import CommandScorer, scores_in_sandbox
from callsheet.v1.rules.commands import check_command, check_files, check_image, check_path
from callsheet.v1.rules.fields import References, few, identifier, known, must, token_ids

_MAX_MESSAGES: Final = 1024
_MIN_TEACHER_TOKENS: Final = 2
_PLACES: Final = frozenset(action_pb2.RewardPlace.values())
_BACKGROUNDS: Final = frozenset(action_pb2.RewardBackground.values())


def check_reward(reward: action_pb2.RewardInput, trajectory_id: str) -> References:
    """Checks a test suite, a script or the input of a model; returns the stored payloads that it refers to."""
    match reward.WhichOneof("scorer"):
        case "test_suite":
            return _check_place("reward.test_suite", reward, reward.test_suite, trajectory_id)
        case "script":
            references = _check_place("reward.script", reward, reward.script, trajectory_id)
            _check_score_file(reward.script)
            return references
        case "model":
            _check_tokens_or_text("reward.model", reward.model)
        case "teacher":
            _check_teacher(reward.teacher)
        case "judge":
            rubric = reward.judge.rubric
            must(rubric, "reward.judge.rubric", "", "must not be empty: it says what to judge by")
            few("reward.judge.rubric", len(rubric), MAX_TEXT, "characters")
            _check_text("reward.judge.text", reward.judge.text)
        case _:
            raise invalid("reward.scorer", "", "must be one of test_suite, model, script, teacher and judge")
    return []


def _check_tokens_or_text(field: str, asked: action_pb2.ModelScoreInput | action_pb2.TeacherInput) -> None:
    if asked.HasField("text"):
        must(not asked.token_ids, f"{field}.text", "", "must be unset beside token ids")
        _check_text(f"{field}.text", asked.text)
    else:
        token_ids(f"{field}.token_ids", asked.token_ids)


def _check_teacher(teacher: action_pb2.TeacherInput) -> None:
    _check_tokens_or_text("reward.teacher", teacher)
    before, text = teacher.prompt_token_ids, teacher.text
    token_ids("reward.teacher.prompt_token_ids", before, required=False)
    if teacher.HasField("text"):
        must(not before, "reward.teacher.prompt_token_ids", list(before[:1]), "must be unset beside text")
        must(text.response, "reward.teacher.text.response", "", "must not be empty: its tokens are looked at")
        rule = "must not be empty if there are no messages"
        must(text.prompt or text.messages, "reward.teacher.text.prompt", "", rule)
    else:
        rule = "without a prompt there must be two tokens: the first one has no log-probability"
        enough = len(teacher.token_ids) + len(before) >= _MIN_TEACHER_TOKENS
        must(enough, "reward.teacher.token_ids", teacher.token_ids[0], rule)


def _check_text(field: str, text: action_pb2.ConversationText) -> None:
    must(text.prompt or text.response or text.messages, field, "", "must have a prompt, a response or messages")
    few(f"{field}.messages", len(text.messages), _MAX_MESSAGES, "messages")
    for index, message in enumerate(text.messages):
        identifier(f"{field}.messages[{index}].role", message.role)
    characters = len(text.prompt) + len(text.response) + sum(len(message.content) for message in text.messages)
    if characters > MAX_TEXT:
        raise bad_text(field, f"{characters} characters", f"must have at most {MAX_TEXT}")


def _check_place(field: str, reward: action_pb2.RewardInput, runs: CommandScorer, trajectory_id: str) -> References:
    known(f"{field}.where", runs.where, _PLACES)
    known(f"{field}.background", runs.background, _BACKGROUNDS)
    in_sandbox = scores_in_sandbox(reward)
    name = action_pb2.RewardBackground.Name(runs.background)
    rule = "must be unset: a fresh sandbox has no processes yet"
    must(in_sandbox or not runs.background, f"{field}.background", name, rule)
    references = check_files(f"{field}.files", runs.files)
    must(runs.HasField("command"), f"{field}.command", "", "must be set")
    references += check_command(f"{field}.command", runs.command)
    check_image(f"{field}.image", runs.image)
    rule = "must be empty in the trajectory's sandbox, which has its own"
    must(not in_sandbox or not runs.image, f"{field}.image", runs.image, rule)
    rule = "without a trajectory a fresh sandbox is empty: give files or an image, or ask for EMPTY"
    has_files = runs.files or runs.image or trajectory_id or runs.where == action_pb2.REWARD_PLACE_EMPTY
    must(in_sandbox or has_files, f"{field}.files", "[]", rule)
    return references


def _check_score_file(script: action_pb2.ScriptScoreInput) -> None:
    command = script.command
    texts = [*command.argv.arguments, command.shell, command.python]
    has_placeholder = any(SCORE_PLACEHOLDER in text for text in texts)
    if script.score_file:
        check_path("reward.script.score_file", script.score_file)
        rule = f"must be empty where the command has {SCORE_PLACEHOLDER!r}"
    else:
        rule = f"must name the file with the score, or the command must have {SCORE_PLACEHOLDER!r}"
    must(bool(script.score_file) != has_placeholder, "reward.script.score_file", script.score_file, rule)
