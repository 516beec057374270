"""A package of reward functions, as an operator stages it for sandboxes."""

from __future__ import annotations

from pathlib import Path

MODULE = "staged_graders"
_SOURCE = '''
"""Grades answers. Its import takes a while, as those of real graders do."""
import decimal
import os
import time

READY = sum(range(300_000))


def exact(answer, expected):
    print("graded", answer)
    return answer == expected


def closeness(answer, expected):
    return {"score": 1 / (1 + abs(decimal.Decimal(answer) - expected)), "length": len(answer)}


def slow(seconds):
    time.sleep(seconds)
    return 1


def files(top):
    return len(os.listdir(top))


def size(text):
    return len(text)


def trl_letters(prompts, completions, least, **kwargs):
    """Scores as reward functions of TRL do."""
    return [float(len(text) >= bound) for text, bound in zip(completions, least, strict=True)]


def verl_letters(data_source, solution_str, ground_truth, extra_info=None):
    """Scores as `compute_score` of verl does."""
    long = len(solution_str) >= ground_truth
    return {"score": long, "acc": long, "pred": solution_str, "turns": extra_info["num_turns"]}


def nonsense():
    return "good"
'''


def stage_graders(directory: Path) -> Path:
    """Writes the package; returns what `--stage` takes."""
    stage = directory / "stage"
    stage.mkdir(mode=0o755, parents=True)
    (stage / f"{MODULE}.py").write_text(_SOURCE)
    return stage
