"""Files of results and the settings of evaluations: what is kept, resumed and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.environments import (
    EpisodeRecord,
    EpisodeScore,
    EpisodeTask,
    GatewayPolicy,
    Message,
    TokenPolicy,
)
from callsheet.evaluation.results import (
    Evaluated,
    ResultsFileError,
    TrialResult,
    check_same,
    open_results,
    read_results,
    result_of,
)
from callsheet.evaluation.run import (
    EvaluationError,
    missing_trials,
    policy_factory,
    prompt_of,
)
from callsheet.evaluation.settings import EvaluationSettings


def _result(task: str, trial: int = 0, **fields: Any) -> TrialResult:
    given: dict[str, Any] = {"environment": "words", "status": "scored", "score": 1.0}
    return TrialResult(task=task, trial=trial, **(given | fields))


def test_a_reply_that_no_file_holds_is_named_there() -> None:
    deep: Any = "w0"
    for _ in range(100_000):
        deep = [deep]
    record = EpisodeRecord(EpisodeTask("t"), "t", score=EpisodeScore(1.0), messages=({"role": "assistant", "x": deep},))
    result = result_of(record, 0, Evaluated("words", {}, EvaluationSettings().replies), ())
    assert "RecursionError" in result.messages[0]["content"]


def test_the_settings_say_who_replies() -> None:
    task = EpisodeTask("t")
    by_tokens = EvaluationSettings(model_dir=Path("bytes"), temperature=0.0)
    made = [policy_factory(each) for each in (EvaluationSettings(), by_tokens, EvaluationSettings(agent="x"))]
    assert [make and type(make(task)) for make in made] == [GatewayPolicy, TokenPolicy, None]
    with pytest.raises(ValueError, match="MODULE:NAME"):
        policy_factory(EvaluationSettings(policy="mine"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": "x", "model_dir": Path("m")}, "at most one"),
        ({"trials": 0}, "trials"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EvaluationSettings(**changes)


def test_a_torn_last_line_is_dropped_and_a_writer_is_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_results(path) as file:
        file.add(_result("a"))
        with pytest.raises(ResultsFileError, match="another evaluation"), open_results(path):
            pass
    with path.open("ab") as torn:
        torn.write(b'{"task": "b", "tri')
    with open_results(path) as file:
        assert [each.key for each in file.found] == [("a", 0)]
        file.add(_result("b"))
    assert [json.loads(line)["task"] for line in path.read_text().splitlines()] == ["a", "b"]


_LINE = json.dumps({"task": "a", "trial": 0, "environment": "e", "status": "scored"}).encode() + b"\n"


@pytest.mark.parametrize(("lines", "told"), [(b"{}\n", "line 1"), (_LINE + _LINE, "line 2")])
def test_lines_that_are_no_results_are_named(lines: bytes, told: str) -> None:
    with pytest.raises(ResultsFileError, match=told):
        read_results(lines, "r")


@pytest.mark.parametrize(
    ("evaluated", "told"),
    [
        (Evaluated("other"), "environment"),
        (Evaluated("e", {"count": 2}), r"options\.count is 'absent', not 2"),
        (
            Evaluated("e", {}, EvaluationSettings(temperature=0.5, trials=3).replies),
            r"replies\.temperature is 'absent', not 0\.5",
        ),
    ],
)
def test_results_of_another_evaluation_are_refused(evaluated: Evaluated, told: str) -> None:
    with pytest.raises(ResultsFileError, match=told):
        check_same(read_results(_LINE, "r"), evaluated)


def test_trials_are_told_apart_by_their_tasks_ids() -> None:
    tasks = [EpisodeTask("a"), EpisodeTask("b")]
    found = [_result("a", 0)]
    assert [(each.task.task_id, each.number) for each in missing_trials(tasks, 2, found)] == [
        ("b", 0),
        ("a", 1),
        ("b", 1),
    ]
    with pytest.raises(EvaluationError, match="'a' is the id of two"):
        missing_trials([EpisodeTask("a"), EpisodeTask("a")], 1, [])


def test_a_prompt_has_all_texts() -> None:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    assert prompt_of(messages) == "Be brief.\n\nGo."


@pytest.mark.parametrize("content", ["notes of mine", '{"task":"a"}\nnotes', '{"other": 1}\n{"task'])
def test_nothing_is_cut_from_a_file_that_no_evaluation_wrote(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ResultsFileError, match="no result of an evaluation"), open_results(path):
        pass
    assert path.read_text() == content
