"""The demo's scripted agents: what they do, what they may get wrong, and that a seed decides it."""

from __future__ import annotations

import random

import pytest
from callsheet.benchmarks.demo.policy import (
    CodingAssignment,
    Decision,
    Policy,
    coding_policy,
    game_policy,
    shortest_move,
)
from callsheet.client.words.commands import Command
from callsheet.environments.bash_replies import CommandReport

TEST = Command.argv("python3", "-m", "pytest", "tests/test_a.py::test_a")
ASSIGNMENT = CodingAssignment("package/a-1", "a.py", "A.f", 30, "    return 1", ("    return 2", "    return 3"), TEST)
FAILS = CommandReport(1, "1 failed\n")
PASSES = CommandReport(0, "1 passed\n")


def play(policy: Policy, fixed_text: str) -> list[Decision]:
    """Runs a coding policy in a world where tests pass if the last edit was `fixed_text`."""
    turns: list[Decision] = []
    turn = next(policy)
    last_edit = ""
    while True:
        turns.append(turn)
        if turn.label == "edit":
            last_edit = turn.command.program[-1]
        observation = PASSES if turn.label == "test" and last_edit == fixed_text else FAILS
        try:
            turn = policy.send(observation)
        except StopIteration:
            return turns


def labels(seed: int) -> list[str]:
    return [turn.label for turn in play(coding_policy(ASSIGNMENT, random.Random(seed)), "    return 1")]


def test_a_coder_tests_first_then_looks_edits_and_tests_again() -> None:
    for seed in range(200):
        done = labels(seed)
        assert (done[:2], done[-2:]) == (["test", "look"], ["edit", "test"])
        assert set(done) <= {"test", "look", "slip", "edit"}


def test_a_coder_is_decided_by_its_seed_and_varies() -> None:
    lengths = [len(labels(seed)) for seed in range(200)]
    assert lengths == [len(labels(seed)) for seed in range(200)]
    assert max(lengths) >= 2 * min(lengths)


def test_some_coders_slip_edit_wrongly_or_give_up() -> None:
    runs = [play(coding_policy(ASSIGNMENT, random.Random(seed)), "    return 1") for seed in range(200)]
    edits = [[turn.command.program[-1] for turn in run if turn.label == "edit"] for run in runs]
    solved = [texts for texts in edits if texts[-1] == "    return 1"]
    assert 100 < len(solved) < 200
    assert any(len(texts) > 1 for texts in solved)
    assert {text for texts in edits for text in texts} == {"    return 1", "    return 2", "    return 3"}
    slips = {turn.command.program[0] for run in runs for turn in run if turn.label == "slip"}
    assert slips == {"code-search", "tail"}


def test_a_command_that_hangs_has_little_time() -> None:
    for seed in range(100):
        for turn in play(coding_policy(ASSIGNMENT, random.Random(seed)), "    return 1"):
            assert (turn.start_to_close_s < 5) == (turn.command.program[0] == "tail")


@pytest.mark.parametrize(
    ("rows", "move"),
    [
        (["AF", "FG"], "down"),
        (["AHG", "FHF", "FFF"], "down"),
        (["SAG"], "right"),
        (["GFA"], "left"),
        (["FG", "AH"], "up"),
        (["AHG"], None),
        (["SFG"], None),
        ([], None),
    ],
)
def test_the_shortest_way_goes_around_holes(rows: list[str], move: str | None) -> None:
    assert shortest_move(rows) == move


def requests(seed: int, answers: list[CommandReport]) -> list[str]:
    policy = game_policy(random.Random(seed))
    sent = [next(policy).command.program[-1]]
    for answer in answers:
        try:
            sent.append(policy.send(answer).command.program[-1])
        except StopIteration:
            break
    return sent


def test_a_player_looks_first_and_stops_when_the_game_is_over() -> None:
    on_the_way = CommandReport(0, "playing\nsteps 0\nAF\nFG\n")
    assert len(requests(0, [on_the_way, CommandReport(0, "won\nsteps 1\nSF\nFA\n"), on_the_way])) == 2
    assert requests(0, [on_the_way])[0] == "look"


def test_a_player_mostly_goes_the_shortest_way_and_sometimes_slips() -> None:
    ahead = CommandReport(0, "playing\nsteps 0\nAFG\n")
    sent = [request for seed in range(60) for request in requests(seed, [ahead] * 20)[1:]]
    assert 0.75 < sent.count("right") / len(sent) < 0.98
    assert {"jump", "north", "dig"} & set(sent)


def test_a_player_remembers_the_map_when_its_word_was_no_move() -> None:
    ahead, refused = CommandReport(0, "playing\nsteps 0\nAFG\n"), CommandReport(2, "invalid: 'jump' is none of ...\n")
    assert [requests(seed, [ahead, refused])[2] for seed in range(60)].count("right") > 40


def test_a_player_gives_up_in_the_end() -> None:
    assert len(requests(0, [CommandReport(0, "playing\nsteps 0\nAFG\n")] * 100)) == 25
