"""Reward functions as a sandbox runs them, for fakes: their real program in a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from callsheet.client import Failed, FailureKind, Outcome, RewardResult, RewardScript, Succeeded
from callsheet.client.words.outcomes import Reason

MODULE = "function_runs_graders"
_SOURCE = """
class Number:
    def __float__(self):
        return 0.25


def trl_like(prompts, completions, least, **kwargs):
    return [float(len(text) >= bound) for text, bound in zip(completions, least, strict=True)]


def verl_like(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str == str(ground_truth)
    return {"score": right, "acc": right, "pred": solution_str, "turns": extra_info["num_turns"], "none": None}


async def later(value):
    return value


def given(value):
    return value


def number():
    return Number()


def numbers():
    return [{"score": Number(), "other": Number()}]
"""


def run_function(script: RewardScript) -> Outcome[RewardResult]:
    """Runs what `function_script` made, beside a package of functions."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / f"{MODULE}.py").write_text(_SOURCE)
        score = Path(directory, "score")
        program = [str(score) if each == "{score}" else each for each in script.command.program]
        command = [sys.executable, *program[1:]]
        ended = subprocess.run(command, cwd=directory, input=script.command.stdin, capture_output=True, check=False)
        if ended.returncode:
            return Failed(FailureKind.ENV, Reason.SCRIPT_FAILED, ended.stderr.decode()[-500:])
        found = json.loads(score.read_text())
    components = found if isinstance(found, dict) else {}
    return Succeeded(RewardResult(components.get("score", found), components=components))
